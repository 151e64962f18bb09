"""Subclasses of known modules, whole models in files, and `data` of packed weights."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy
import pytest
import torch
from packed_cases import assert_close, needs_kernels, seeded
from torch import Tensor, nn

from selfish_rnn import Sparsifier, pack, quantize, register_packed, unpack
from selfish_rnn.engine import PackedLinear, PackedLSTM, PackedWeight, QuantizedWeight
from selfish_rnn.engine import registry as registry_module
from selfish_rnn.models.cells.highway import HighwayCell
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell

pytestmark = needs_kernels


class Initialized(nn.LSTM):
    """With torch's forward; an initialization, an attribute, a module, a buffer and a method of its own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.field = 3
        self._note = "mine"
        self.norm = nn.LayerNorm(2)
        self.register_buffer("seen", torch.ones(2))
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()

    def first_state(self, batch: int) -> Tensor:
        return torch.zeros(self.num_layers, batch, self.hidden_size)

    @property
    def doubled(self) -> int:
        return 2 * self.field


class Line(nn.Linear):
    pass


class Words(nn.Embedding):
    scale = 2.0


class Gated(nn.GRU):
    pass


class Plain(nn.RNN):
    pass


class Step(nn.LSTMCell):
    pass


class Wheel(HighwayCell):
    def helper(self) -> int:
        return 1


SUBCLASSES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "lstm": (Initialized(6, 5, 2, bidirectional=True), (torch.randn(4, 3, 6),)),
    "projected": (Initialized(6, 5, proj_size=3), (torch.randn(4, 3, 6),)),
    "gru": (Gated(6, 5, bias=False), (torch.randn(4, 3, 6),)),
    "rnn": (Plain(6, 5, nonlinearity="relu"), (torch.randn(4, 3, 6),)),
    "cell": (Step(6, 5), (torch.randn(3, 6),)),
    "linear": (Line(6, 5), (torch.randn(3, 6),)),
    "embedding": (Words(6, 5, padding_idx=1), (torch.tensor([[1, 5]]),)),
    "highway": (Wheel(6, 5, 2), (torch.randn(4, 3, 6), torch.randn(3, 5))),
}


@torch.no_grad()
def sparse(module: nn.Module) -> Any:
    """Set about half of the weights of a module to zero."""
    for parameter in module.parameters():
        if parameter.ndim == 2:
            parameter.mul_(torch.rand(parameter.shape, generator=seeded(5)) < 0.5)
    return module


@pytest.mark.parametrize("name", SUBCLASSES)
@pytest.mark.parametrize("inside", [True, False])
def test_subclasses_with_the_forward_of_torch_are_packed_and_come_back(name: str, inside: bool) -> None:
    dense, inputs = copy.deepcopy(SUBCLASSES[name])
    before = copy.deepcopy(sparse(dense))
    model: Any = pack(nn.ModuleList([dense]) if inside else dense, strict=True)
    packed = model[0] if inside else model
    assert any(isinstance(child, PackedWeight) for child in packed.children())
    for one, other in zip(_tensors(packed(*inputs)), _tensors(before(*inputs)), strict=True):
        assert_close(one, other)
    for way in (copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each)), lambda each: each):
        copied = way(model)
        back = unpack(copied)[0] if inside else unpack(copied)
        assert type(back) is type(before)
        assert vars(back).keys() == vars(before).keys()
        assert back.state_dict().keys() == before.state_dict().keys()
        assert all(torch.equal(tensor, before.state_dict()[key]) for key, tensor in back.state_dict().items())
        assert repr(back) == repr(before)
        for one, other in zip(_tensors(back(*inputs)), _tensors(before(*inputs)), strict=True):
            assert torch.equal(one, other)


def _tensors(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [each for part in output for each in _tensors(part)]


def packed_subclass() -> Any:
    lstm = Initialized(6, 5)
    Sparsifier(lstm, sparsity=0.5, rewirings=1)
    return pack(lstm)


def test_a_packed_subclass_offers_what_the_subclass_has() -> None:
    lstm = packed_subclass()
    assert type(lstm) is PackedLSTM
    assert (lstm.field, lstm._note, lstm.doubled) == (3, "mine", 6)
    assert lstm.first_state(2).shape == (1, 2, 5)
    lstm.field = 4
    assert lstm.doubled == 8
    assert {"norm.weight", "seen"} < lstm.state_dict().keys()
    assert "passing" not in lstm.state_dict()
    assert lstm.passing.shape == (2,)
    assert unpack(lstm).field == 4
    for name in ("permute_hidden", "all_weights", "nothing"):
        with pytest.raises(AttributeError, match=f"'PackedLSTM' object has no attribute '{name}'"):
            getattr(packed_subclass(), name)
    small = quantize(packed_subclass())
    assert small.doubled == 6


@pytest.mark.slow
def test_a_packed_subclass_is_compiled() -> None:
    lstm, x = packed_subclass(), torch.randn(4, 3, 6)
    compiled = torch.compile(lstm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], lstm(x)[0])


OVERRIDING: dict[str, tuple[type[nn.Module], str]] = {
    "forward": (type("Other", (nn.Linear,), {"forward": lambda self, x: x}), "forward"),
    "cell": (type("Other", (nn.GRUCell,), {"forward": lambda self, x: x}), "forward"),
    "helper": (type("Other", (nn.LSTM,), {"permute_hidden": lambda self, hx, order: hx}), "permute_hidden"),
    "checks": (type("Other", (nn.GRU,), {"check_forward_args": lambda *_: None}), "check_forward_args"),
    "call": (type("Other", (nn.Linear,), {"__call__": lambda self, x: x}), "__call__"),
    "mode": (type("Other", (nn.Linear,), {"train": lambda self, mode=True: self}), "train"),
    "attributes": (type("Other", (nn.Linear,), {"__getattr__": nn.Module.__getattr__}), ""),
    "mixin": (type("Other", (type("Mixin", (), {"forward": lambda self, x: x}), nn.Linear), {}), "forward"),
    "property": (type("Other", (nn.GRU,), {"hidden_size": property(lambda self: 5, lambda *_: None)}), "hidden_size"),
}


@pytest.mark.parametrize("case", OVERRIDING)
def test_subclasses_that_may_compute_something_else_stay(case: str) -> None:
    kind, name = OVERRIDING[case]
    module = sparse(kind(6, 5))
    if not name:  # the very function of the base
        assert isinstance(pack(module), PackedLinear)
        return
    with pytest.raises(ValueError, match=rf"is a subclass of torch.nn.\w+, overrides {name} and may compute"):
        pack(module, strict=True)


def test_an_attribute_that_would_hide_one_of_the_packed_class_is_named() -> None:
    line = sparse(Line(6, 5))
    line.cross_entropy = 3
    with pytest.raises(ValueError, match=r"cross_entropy would hide those of .*PackedLinear: rename them"):
        pack(line, strict=True)


def test_multihead_attention_goes_on() -> None:
    """Its output layer is a subclass of nn.Linear with torch's forward, whose weight it reads itself."""
    attention = nn.MultiheadAttention(8, 2).eval()
    Sparsifier(attention, sparsity=0.5, rewirings=1)
    x = torch.randn(4, 3, 8)
    wanted = attention(x, x, x)[0]
    assert_close(pack(attention)(x, x, x)[0], wanted)


class Checking(nn.LSTM):
    """Overrides forward harmlessly, as subclasses of pytorch-forecasting do."""

    def forward(self, x: Tensor, state: Any = None) -> Any:
        if not torch.isfinite(x).all():
            raise ValueError("x is not finite")
        return super().forward(x, state)

    def first_state(self) -> int:
        return self.hidden_size


def test_a_class_registered_as_like_another_is_packed_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_counterparts", dict(registry_module._counterparts))
    dense = Checking(6, 5)
    Sparsifier(dense, sparsity=0.5, rewirings=1).detach()
    x = torch.randn(4, 3, 6)
    wanted = dense(x)[0]
    with pytest.raises(ValueError, match=r"Checking is a subclass of torch.nn.LSTM, overrides forward"):
        pack(copy.deepcopy(dense), strict=True)
    register_packed(Checking, like=nn.LSTM)
    packed: Any = pack(dense, strict=True)
    assert type(packed) is PackedLSTM
    assert packed.first_state() == 5
    assert_close(packed(x)[0], wanted)
    assert type(unpack(copy.deepcopy(packed))) is Checking
    small: Any = quantize(copy.deepcopy(packed))
    assert isinstance(small.weight_hh_l0, QuantizedWeight)
    lstm = nn.LSTM(6, 5)
    Sparsifier(lstm, sparsity=0.5, rewirings=1).detach()
    assert type(unpack(pack(lstm))) is nn.LSTM  # is not taken for the one registered last


def test_registering_says_what_is_wrong() -> None:
    with pytest.raises(TypeError, match="either a packed class or like="):
        register_packed(Checking)
    with pytest.raises(TypeError, match="either a packed class or like="):
        register_packed(Checking, PackedLSTM, like=nn.LSTM)
    for like in (nn.GRU, nn.Tanh):
        with pytest.raises(TypeError, match=rf"like=torch.nn.{like.__name__} must be a class with a packed"):
            register_packed(Checking, like=like)


def test_quantize_says_what_pack_says(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(Checking(6, 5))
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=1)
    with pytest.raises(ValueError, match=r"cannot be packed:\n  0: test_subclasses.Checking is a subclass of"):
        quantize(model)
    assert sparsifier.active_weights == sparsifier.target_weights
    model.append(nn.Linear(5, 6))
    sparsifier.detach()
    Sparsifier(model, sparsity=0.5, rewirings=1)
    caplog.clear()
    small = quantize(model)
    assert isinstance(small[1].weight, QuantizedWeight)
    assert "0: test_subclasses.Checking is a subclass of torch.nn.LSTM" in caplog.text


def test_frozen_biases_stay_frozen() -> None:
    for module in (nn.Linear(6, 5), nn.GRU(6, 5)):
        packed = pack(sparse(module).requires_grad_(False), strict=True)
        assert not any(parameter.requires_grad for parameter in packed.parameters())


# Whole models in files that torch.load opens with weights_only


WHOLE: dict[str, nn.Module] = {
    "lstm": nn.LSTM(6, 5),
    "gru": nn.GRU(6, 5),
    "rnn": nn.RNN(6, 5),
    "lstm cell": nn.LSTMCell(6, 5),
    "gru cell": nn.GRUCell(6, 5),
    "rnn cell": nn.RNNCell(6, 5),
    "linear": nn.Linear(6, 5),
    "embedding": nn.Embedding(6, 5),
    "highway": HighwayCell(6, 5, 2),
    "ordered neurons": OrderedNeuronsCell(6, 4, 2),
}


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_open_with_weights_only(name: str, small: bool) -> None:
    model = pack(sparse(copy.deepcopy(WHOLE[name])), strict=True)
    if small:
        model = quantize(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    opened = torch.load(file, weights_only=True)
    assert type(opened) is type(model)
    assert opened.state_dict().keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(opened.state_dict()[key], tensor)
    matrices = [child for child in opened.children() if isinstance(child, PackedWeight | QuantizedWeight)]
    assert matrices
    for one, other in zip(matrices, model.children(), strict=False):
        assert torch.equal(one.to_dense(), other.to_dense())  # type: ignore[operator]


def test_a_damaged_index_in_a_whole_model_is_refused() -> None:
    packed: Any = PackedLinear(6, 5, sparsity=0.5)
    file = io.BytesIO()
    packed.weight._buffers["index"] = packed.weight.index[:100].clone()
    torch.save(packed, file)
    file.seek(0)
    with pytest.raises(ValueError, match="the index of a packed weight is damaged"):
        torch.load(file, weights_only=True)(torch.randn(2, 6))


# `data` of packed weights


def both() -> list[Any]:
    matrix = torch.randn(5, 6, generator=seeded(0)) * (torch.rand(5, 6, generator=seeded(1)) < 0.5)
    return [PackedWeight.from_dense(matrix), QuantizedWeight.from_dense(matrix)]


def test_data_reads_as_the_matrix() -> None:
    for weight in both():
        wanted = weight.to_dense().detach()
        assert torch.equal(weight.data, wanted)
        assert weight.data.shape == (5, 6)
        assert not weight.data.requires_grad
        assert numpy.array_equal(weight.data.numpy(), wanted.numpy())
        assert weight.data.tolist() == wanted.tolist()
        assert weight.data.new().resize_((5, 1)).bernoulli_(0.5).shape == (5, 1)
        assert torch.equal(weight.data.clone().mul_(2), 2 * wanted)
        assert torch.equal(copy.deepcopy(weight.data).mul_(2), 2 * wanted)
        assert repr(weight.data) == repr(wanted)
        file = io.BytesIO()
        torch.save(weight.data, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=True)) is Tensor


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.uniform_(-0.1, 0.1),
        lambda data: nn.init.orthogonal_(data),
        lambda data: data.copy_(torch.zeros(5, 6)),
        lambda data: data.__setitem__(0, 1.0),
        lambda data: data.__iadd__(1.0),
        lambda data: data[0].zero_(),
        lambda data: data.view(-1).mul_(2),
        lambda data: data.t().chunk(2)[0].zero_(),
        lambda data: data.detach().zero_(),
        lambda data: data.contiguous().fill_(1),
        lambda data: torch.add(torch.ones(5, 6), 1.0, out=data),
        lambda data: torch.relu_(data),
    ],
)
def test_changes_of_data_are_refused_because_they_would_be_lost(change: Any) -> None:
    for weight in both():
        with pytest.raises(RuntimeError, match=r"would change a copy: `data` of a packed or int8 weight"):
            change(weight.data)


def test_data_is_not_set_and_its_array_not_written() -> None:
    packed, small = both()
    with pytest.raises(TypeError, match="`data` of a packed weight cannot be set"):
        packed.data = torch.zeros(5, 6)
    for weight in (packed, small):
        with pytest.raises(ValueError, match="read-only"):
            weight.data.numpy()[0] = 1
