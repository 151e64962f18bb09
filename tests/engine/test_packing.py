"""Packing models: which modules give way to which, by one table."""

from __future__ import annotations

import pytest
import torch
from packed_cases import assert_close, matrix, needs_kernels, seeded
from torch import Tensor, nn

from selfish_rnn import GateLayout, Sparsifier, register_cell
from selfish_rnn.engine import (
    PackedEmbedding,
    PackedGRU,
    PackedGRUCell,
    PackedLinear,
    PackedLSTM,
    PackedLSTMCell,
    PackedRNN,
    PackedRNNCell,
    PackedWeight,
    functional,
    output_loss,
    pack,
    register_packed,
    registry,
)
from selfish_rnn.models import MixtureOfSoftmaxesLSTM
from selfish_rnn.models.cells.highway import HighwayCell, PackedHighwayCell
from selfish_rnn.models.cells.mixture import PackedMixtureDecoder
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell, PackedOrderedNeuronsCell
from selfish_rnn.models.cells.weight_drop import PackedWeightDropLSTM, WeightDropLSTM

pytestmark = needs_kernels


class Cell(nn.Module):
    """A user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrix(8, 6, 0.4, 0))
        self.bias = nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.t() + self.bias + self.shift).tanh()


class PackedCell(Cell):
    def forward(self, x: Tensor) -> Tensor:
        return (functional.linear(x, self.weight, self.bias) + self.shift).tanh()


@pytest.fixture
def own_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_counterparts", dict(registry._counterparts))
    register_cell(Cell, lambda cell: {"weight": GateLayout.single(8)})
    register_packed(Cell, PackedCell)


def zeroed(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(torch.rand(parameter.shape, generator=seeded(1)) < 0.4)
    return module


@pytest.mark.parametrize(
    ("dense", "packed"),
    [
        (nn.Linear(6, 8), PackedLinear),
        (nn.Embedding(8, 6), PackedEmbedding),
        (nn.LSTM(6, 8), PackedLSTM),
        (nn.GRU(6, 8), PackedGRU),
        (nn.RNN(6, 8), PackedRNN),
        (nn.LSTM(6, 8, 2, bidirectional=True, proj_size=4), PackedLSTM),
        (nn.Embedding(8, 6, padding_idx=0), PackedEmbedding),
        (nn.LSTMCell(6, 8), PackedLSTMCell),
        (nn.GRUCell(6, 8), PackedGRUCell),
        (nn.RNNCell(6, 8), PackedRNNCell),
        (HighwayCell(6, 8, 2), PackedHighwayCell),
        (OrderedNeuronsCell(6, 8, 2), PackedOrderedNeuronsCell),
        (WeightDropLSTM(6, 8, 0.3), PackedWeightDropLSTM),
    ],
)
def test_every_kind_gives_way_to_its_counterpart(dense: nn.Module, packed: type[nn.Module]) -> None:
    names = set(dict(zeroed(dense).named_parameters()))
    swapped = pack(dense)
    assert type(swapped) is packed
    assert {name.removesuffix(".values") for name, _ in swapped.named_parameters()} == names
    assert getattr(swapped, "weight_drop", 0.0) == getattr(dense, "weight_drop", 0.0)


@pytest.mark.parametrize(
    "module",
    [
        nn.Embedding(8, 6, max_norm=1.0),
        type("Other", (nn.Linear,), {"train": lambda self, mode=True: self})(6, 8),
    ],
)
def test_what_has_no_counterpart_stays(module: nn.Module) -> None:
    assert pack(zeroed(module)) is module
    assert not any(isinstance(each, PackedWeight) for each in module.modules())


class Ours(nn.Linear):
    """A subclass that may compute something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def mixed() -> nn.ModuleDict:
    """Modules of which only the first can be packed; the last has no zeros."""
    pruned = nn.Linear(6, 8)
    nn.utils.prune.random_unstructured(pruned, "weight", 0.5)
    replaced = zeroed(nn.Linear(6, 8))
    replaced.forward = lambda x: x
    modules = {
        "packed": zeroed(nn.Linear(6, 8)),
        "limited": zeroed(nn.Embedding(8, 6, max_norm=1.0)),
        "ours": zeroed(Ours(6, 8)),
        "pruned": pruned,
        "replaced": replaced,
        "dense": nn.Linear(6, 8),
    }
    return nn.ModuleDict(modules)


LEFT = {
    "limited": "max_norm",
    "ours": "test_packing.Ours is a subclass of torch.nn.Linear, overrides forward and may compute something else: "
    "register_packed(Ours, like=torch.nn.Linear) packs it as that class, register_packed(Ours, ...) as one of your own",
    "pruned": "RandomUnstructured of torch.nn.utils makes its weight anew before every pass: remove it first",
    "replaced": "its forward was replaced by another function",
}


def test_pack_tells_what_it_leaves_and_why(caplog: pytest.LogCaptureFixture) -> None:
    model = pack(mixed())
    assert [name for name, module in model.items() if isinstance(module, PackedLinear)] == ["packed"]
    assert [record.name for record in caplog.records] == ["selfish_rnn.engine"]
    told = "\n".join(f"  {name}: {reason}" for name, reason in LEFT.items())
    assert caplog.messages == [f"pack leaves these modules with sparse weights as they are:\n{told}"]


def test_strict_packing_leaves_nothing_or_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = mixed()
    with pytest.raises(
        ValueError, match=r"cannot be packed:\n  limited: max_norm\n  ours: test_packing.Ours is a subclass"
    ):
        pack(model, strict=True)
    assert not any(isinstance(module, PackedWeight) for module in model.modules())
    for name in LEFT:
        del model[name]
    pack(model, strict=True)
    assert isinstance(model["packed"], PackedLinear)
    assert not caplog.records


def test_what_a_sparsifier_rules_over_and_has_no_counterpart_is_named() -> None:
    model = nn.Sequential(nn.Conv1d(4, 6, 3), nn.Linear(6, 8))
    Sparsifier(model, sparsity=0.5, rewirings=1, include=(nn.Conv1d, nn.Linear))
    with pytest.raises(ValueError, match=r"0: torch.nn.Conv1d has no packed counterpart"):
        pack(model, strict=True)


def test_a_weight_that_others_use_as_it_is_stays_and_is_named() -> None:
    model = nn.ModuleDict({"own": zeroed(Ours(6, 8)), "tied": nn.Linear(6, 8)})
    model["tied"].weight = model["own"].weight
    with pytest.raises(ValueError, match="tied: a module that stays as it is uses the same weight"):
        pack(model, strict=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions_are_refused(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Tanh(), zeroed(nn.Linear(6, 8))).to(dtype)
    with pytest.raises(TypeError, match=r"1.weight is \w+, the packed engine computes in float32: call model.float"):
        pack(model)
    assert isinstance(model[1], nn.Linear)


@pytest.mark.parametrize("optimizer_kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_made_before_packing_is_refused(optimizer_kind: type[torch.optim.Optimizer]) -> None:
    model = nn.Sequential(zeroed(nn.Linear(6, 8)), nn.Linear(8, 3))
    before = optimizer_kind(model.parameters(), lr=0.1)
    untouched = optimizer_kind(model[1].parameters(), lr=0.1)
    pack(model)
    model(torch.ones(2, 6)).sum().backward()
    with pytest.raises(RuntimeError, match=r"holds 0.weight, which packing or unpacking has replaced: make the opt"):
        before.step()
    untouched.step()
    optimizer_kind(model.parameters(), lr=0.1).step()


def test_a_module_that_gave_way_as_a_whole_is_not_trained_by_mistake() -> None:
    lstm = nn.LSTM(6, 8)
    Sparsifier(lstm, sparsity=0.5, rewirings=1)
    pack(lstm)
    optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)
    lstm(torch.ones(3, 2, 6))[0].sum().backward()
    with pytest.raises(RuntimeError, match="weight_ih_l0 of the module that was given to pack"):
        optimizer.step()


def test_a_frozen_weight_under_a_sparsifier_is_packed_and_stays_frozen() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    Sparsifier(model, sparsity=0.5, rewirings=1)
    model[0].requires_grad_(False)
    pack(model, strict=True)
    assert not model[0].weight.requires_grad
    assert model[1].weight.requires_grad


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 8), Cell])
@pytest.mark.usefixtures("own_cell")
def test_hooks_go_with_the_module(make: type[nn.Module]) -> None:
    model = nn.Sequential(zeroed(make()))
    calls: list[str] = []
    handles = [
        model[0].register_forward_pre_hook(lambda module, inputs: calls.append("before")),
        model[0].register_forward_hook(lambda module, inputs, kwargs, y: calls.append("after"), with_kwargs=True),
        model[0].register_full_backward_hook(lambda module, given, found: calls.append("back")),
    ]
    pack(model, strict=True)
    x = torch.ones(2, 6, requires_grad=True)
    model(x).sum().backward()
    assert calls == ["before", "after", "back"]
    for handle in handles:
        handle.remove()
    model(x).sum().backward()
    assert len(calls) == 3


@pytest.mark.usefixtures("own_cell")
def test_an_own_cell_is_packed_trained_and_rewired() -> None:
    model = nn.Sequential(Cell(), nn.Linear(8, 3))
    x = torch.randn(5, 6, generator=seeded(2))
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=1)
    want = model(x)
    want.sum().backward()
    gradient, bias = model[0].weight.grad.clone(), model[0].bias
    model.zero_grad()
    pack(model)
    assert type(model[0]) is PackedCell
    assert model[0].bias is bias
    assert_close(model(x), want)
    model(x).sum().backward()
    positions, places = model[0].weight.sorted()
    assert_close(model[0].weight.values.grad[places], gradient.flatten()[positions])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    sparsifier.rewire()
    assert sparsifier.active_weights == sparsifier.target_weights
    assert list(model.state_dict()) == [
        "0.bias",
        "0.shift",
        "0.weight.values",
        "0.weight.bits",
        "1.bias",
        "1.weight.values",
        "1.weight.bits",
    ]


@pytest.mark.usefixtures("own_cell")
def test_the_dense_cell_is_not_changed() -> None:
    cell = Cell()
    packed = pack(cell)
    assert isinstance(cell.weight, nn.Parameter)
    assert isinstance(packed.weight, PackedWeight)


def test_a_counterpart_must_be_able_to_take_its_place() -> None:
    with pytest.raises(TypeError, match=r"torch.nn.Tanh is neither a subclass of test_packing.Cell nor"):
        register_packed(Cell, nn.Tanh)
    with pytest.raises(TypeError, match=r"Cell is no subclass of test_packing.PackedCell, which is to become it"):
        register_packed(Cell, PackedCell, quantized=Cell)


def test_a_module_that_is_used_twice_stays_one() -> None:
    layer = zeroed(nn.Linear(6, 6))
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Sequential(layer))
    x = torch.randn(5, 6, generator=seeded(2))
    want = model(x)
    pack(model)
    assert model[0] is model[2] is model[3][0]
    assert isinstance(model[0], PackedLinear)
    assert_close(model(x), want)


@pytest.mark.parametrize("training", [True, False])
def test_the_mixture_of_softmaxes(training: bool) -> None:
    torch.manual_seed(1)
    model = MixtureOfSoftmaxesLSTM(50, embedding=12, hidden=16, hidden_last=10, experts=3)
    zeroed(model)
    tokens, targets = torch.randint(50, (2, 6, 5))
    results = []
    for _ in range(2):
        model.train(training).zero_grad()
        torch.manual_seed(7)
        encoded = model.encode(tokens, model.initial_state(5))
        loss = model.loss(encoded.output, targets)
        loss.backward()
        results.append((loss, model.decoder.bias.grad, model.eval()(tokens)[0]))
        pack(model)
    assert isinstance(model.decoder, PackedMixtureDecoder)
    assert model.decoder.weight is model.embedding.weight
    assert [rnn.weight_drop for rnn in model.rnns] == [0.5] * 3
    for one, other in zip(*results, strict=True):
        assert_close(one, other)
    model.reset_parameters()
    assert torch.isfinite(model(tokens)[0]).all()


@pytest.mark.parametrize("bias", [True, False])
def test_the_loss_of_an_output_layer_of_any_kind(bias: bool) -> None:
    layer = zeroed(nn.Linear(6, 8, bias=bias))
    x, targets = torch.randn(5, 2, 6, generator=seeded(2)), torch.randint(8, (5, 2), generator=seeded(3))
    want = nn.functional.cross_entropy(layer(x).flatten(0, 1), targets.flatten())
    assert torch.equal(output_loss(layer, x, targets), want)
    assert_close(output_loss(pack(layer), x, targets), want)
