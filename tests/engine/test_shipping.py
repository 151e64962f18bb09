"""Packed models made ordinary again, and sent away in a file."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_cases import assert_close, needs_kernels, seeded
from torch import Tensor, nn

from selfish_rnn import Sparsifier, UserError
from selfish_rnn.engine import PackedWeight, load_packed, pack, quantize, save_packed, unpack
from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.models.cells.highway import HighwayCell
from selfish_rnn.models.cells.mixture import MixtureDecoder
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell
from selfish_rnn.models.cells.weight_drop import WeightDropLSTM

pytestmark = needs_kernels


class Tagger(nn.Module):
    """With a tied matrix, and one that stays dense."""

    def __init__(self, words: int = 30, hidden: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden, padding_idx=0)
        self.rnn = nn.LSTM(hidden, hidden, 2, bidirectional=True)
        self.between = nn.Linear(2 * hidden, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.output = nn.Linear(hidden, words)
        self.output.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((), 2.0))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.between(self.rnn(self.embedding(tokens))[0])
        return self.output(self.norm(hidden.transpose(1, 2)).transpose(1, 2)) * self.scale


def tokens(words: int = 30) -> Tensor:
    return torch.randint(words, (6, 4), generator=seeded(0))


def packed_tagger() -> tuple[Tagger, Sparsifier]:
    model = Tagger()
    sparsifier = Sparsifier(model, sparsity=0.7, rewirings=3, exclude="between*", min_side=1)
    return pack(model, strict=True), sparsifier


# Unpacking


@pytest.mark.parametrize(
    "dense",
    [
        nn.Linear(6, 8),
        nn.Embedding(8, 6, padding_idx=1),
        nn.LSTM(6, 8, 2, bidirectional=True, proj_size=3, dropout=0.2, batch_first=True),
        nn.GRU(6, 8, bias=False),
        nn.RNN(6, 8, nonlinearity="relu"),
        nn.LSTMCell(6, 8),
        nn.GRUCell(6, 8, bias=False),
        nn.RNNCell(6, 8),
        HighwayCell(6, 8, 2),
        OrderedNeuronsCell(6, 8, 2),
        WeightDropLSTM(6, 8, 0.3),
        MixtureDecoder(6, 8),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_unpacking_undoes_packing(dense: nn.Module, inside: bool) -> None:
    dense = copy.deepcopy(dense).eval()
    called: list[int] = []
    dense.register_forward_hook(lambda *_: called.append(1))
    Sparsifier(dense, sparsity=0.5, rewirings=1).detach()
    before = copy.deepcopy(dense)
    model: Any = nn.ModuleList([dense]) if inside else dense
    back = unpack(pack(model, strict=True))
    found = back[0] if inside else back
    assert type(found) is type(before)
    assert repr(found) == repr(before)
    assert not found.training
    assert len(found._forward_hooks) == 1
    assert getattr(found, "weight_drop", 0) == getattr(before, "weight_drop", 0)
    assert found.state_dict().keys() == before.state_dict().keys()
    for name, tensor in before.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


def test_a_model_that_is_unpacked_gives_the_same_and_stays_tied() -> None:
    model, _ = packed_tagger()
    model.eval().requires_grad_(False)
    want = model(tokens())
    back = unpack(model)
    assert back is model
    assert not any(isinstance(module, PackedWeight) for module in model.modules())
    assert model.output.weight is model.embedding.weight
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert_close(model(tokens()), want)


def test_a_sparsifier_goes_on_with_masked_weights() -> None:
    model, sparsifier = packed_tagger()
    unpack(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens()).square().mean().backward()
        optimizer.step()
        sparsifier.rewire()
        counts = {weight.name: weight.count for weight in sparsifier.weights}
        assert int(model.rnn.weight_hh_l1.count_nonzero()) <= counts["rnn.weight_hh_l1"]
    assert sparsifier.active_weights == sparsifier.target_weights


def test_a_model_in_training_is_unpacked_as_a_copy() -> None:
    model, _ = packed_tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens()).square().mean().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"unpack copy.deepcopy\(model\)"):
        unpack(model)
    copied = unpack(copy.deepcopy(model).eval())
    assert_close(copied(tokens()), model.eval()(tokens()))
    optimizer.step()


def test_an_optimizer_of_packed_weights_is_refused_after_unpacking() -> None:
    model, sparsifier = packed_tagger()
    sparsifier.detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unpack(model)
    with pytest.raises(RuntimeError, match=r"embedding.weight.values, which packing or unpacking has replaced"):
        optimizer.step()


def test_trace_and_export_after_unpacking() -> None:
    model, _ = packed_tagger()
    want = model.eval()(tokens())
    unpack(model)
    traced = torch.jit.trace(model, (tokens(),))
    assert_close(traced(tokens()), want)
    exported = torch.export.export(model, (tokens(),))
    assert_close(exported.module()(tokens()), want)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporters, about their own ways
@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_onnx_after_unpacking(package: str, tmp_path: Path) -> None:
    """By both exporters of torch, which need these packages; onnxruntime says whether it is the same model."""
    pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
            self.output = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.output(self.rnn(x)[0])

    model = Scores().eval()
    Sparsifier(model, sparsity=0.7, rewirings=1)
    pack(model, strict=True)
    x, other = torch.randn(3, 5, 6, generator=seeded(0)), torch.randn(2, 9, 6, generator=seeded(1))
    want = [model(given) for given in (x, other)]
    file = tmp_path / "scores.onnx"
    options: dict[str, Any] = (
        {"dynamo": False, "dynamic_axes": {"x": {0: "batch", 1: "time"}}}
        if package == "onnx"
        else {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim("batch"), 1: torch.export.Dim("time")},)}
    )
    torch.onnx.export(unpack(model), (x,), file, input_names=["x"], **options)
    session = runtime.InferenceSession(file)
    for given, expected in zip((x, other), want, strict=True):
        assert_close(torch.from_numpy(session.run(None, {"x": given.numpy()})[0]), expected)


# Files


def test_a_model_is_the_same_from_a_file(tmp_path: Path) -> None:
    model, _ = packed_tagger()
    model(tokens()).sum().backward()
    path = tmp_path / "tagger.safetensors"
    save_packed(model, path)

    def on_meta() -> Tagger:
        with torch.device("meta"):
            return Tagger()

    for make in (Tagger, on_meta):
        loaded = load_packed(make, path)
        assert loaded.output.weight is loaded.embedding.weight
        assert loaded.state_dict().keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor)
        assert torch.equal(loaded.eval()(tokens()), model.eval()(tokens()))
        loaded.train()(tokens()).sum().backward()
        assert all(parameter.grad is not None for parameter in loaded.parameters())
        model.train()


def test_an_int8_model_is_the_same_from_a_file(tmp_path: Path) -> None:
    model = quantize(packed_tagger()[0])
    want = model(tokens())
    save_packed(model, tmp_path / "tagger")
    loaded = load_packed(Tagger, tmp_path / "tagger")
    assert quantized_weights(loaded).keys() == quantized_weights(model).keys()
    assert torch.equal(loaded(tokens()), want)
    with pytest.raises(TypeError, match="give its class, or a function, not a model"):
        load_packed(Tagger(), tmp_path / "tagger")  # type: ignore[arg-type]


def test_a_model_without_packed_weights_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no packed weights: pack it, and save what pack returns"):
        save_packed(Tagger(), tmp_path / "tagger")
    assert not list(tmp_path.iterdir())


def test_a_file_has_a_tied_matrix_once_and_no_zeros(tmp_path: Path) -> None:
    model, sparsifier = packed_tagger()
    save_packed(model, tmp_path / "tagger")
    tensors, _ = load_tensors(tmp_path / "tagger")
    assert sum(len(tensor) for name, tensor in tensors.items() if name.endswith(".values")) == sparsifier.active_weights
    assert "embedding.weight.values" in tensors
    assert "output.weight.values" not in tensors


@pytest.mark.slow
def test_a_fresh_process_loads_the_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    Sparsifier(model, sparsity=0.5, rewirings=1)
    pack(model)
    save_packed(model, tmp_path / "model")
    script = (
        "import sys, torch; from torch import nn; from selfish_rnn import load_packed;"
        "model = load_packed(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), sys.argv[1]);"
        "print(model(torch.ones(1, 6)).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(model(torch.ones(1, 6)).tolist())


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model, _ = packed_tagger()
    path = tmp_path / "tagger"
    save_packed(model, path)
    with pytest.raises(UserError, match=r"embedding.weight is \(30, 12\) in it and \(31, 12\) in the model"):
        load_packed(lambda: Tagger(31), path)
    with pytest.raises(UserError, match=r"bias is not in it; embedding.weight is not in the model"):
        load_packed(lambda: nn.Linear(2, 3), path)
    with pytest.raises(UserError, match="does not exist"):
        load_packed(Tagger, tmp_path / "other")
    other = tmp_path / "other"
    save_tensors(other, {"a": torch.zeros(2)})
    with pytest.raises(UserError, match="is not a packed model: save_packed writes such files"):
        load_packed(Tagger, other)
    save_tensors(other, {"a": torch.zeros(2)}, {"format": "packed model 1"})
    with pytest.raises(UserError, match="is a packed model 1, this version reads a packed model 2: save the model aga"):
        load_packed(Tagger, other)
    other.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="damaged"):
        load_packed(Tagger, other)

    class Ours(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    def with_own_layer() -> Tagger:
        made = Tagger()
        made.output = Ours(12, 30)
        made.output.weight = made.embedding.weight
        return made

    with pytest.raises(UserError, match=r"cannot be packed: embedding.weight"):
        load_packed(with_own_layer, path)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("shapes", "x"),
        ("shapes", "[1]"),
        ("shapes", '{"a": 3}'),
        ("shapes", '{"a": [1e999]}'),
        ("shapes", "[" * 10**5),
    ],
)
def test_a_file_that_does_not_say_what_its_tensors_are_is_refused(tmp_path: Path, key: str, text: str) -> None:
    model, _ = packed_tagger()
    path = tmp_path / "tagger"
    save_packed(model, path)
    tensors, metadata = load_tensors(path)
    save_tensors(path, tensors, {**metadata, key: text})
    with pytest.raises(UserError, match="is damaged: it does not give the shapes"):
        load_packed(Tagger, path)
    save_tensors(path, tensors, {name: value for name, value in metadata.items() if name != key})
    with pytest.raises(UserError, match="is damaged: it does not give the shapes"):
        load_packed(Tagger, path)
    for layout, message in ({}, "no layout version"), ({"layout": "9"}, "layout version 9"):
        without = {name: value for name, value in metadata.items() if name != "layout"}
        save_tensors(path, tensors, {**without, **layout})
        with pytest.raises(UserError, match=f"has {message}; this version of selfish-rnn reads layout version 1"):
            load_packed(Tagger, path)
    save_tensors(path, tensors, {**metadata, "shapes": json.dumps({"a" * 10**5: [1] * 10**5})})
    with pytest.raises(UserError, match="does not fit the model: aaaaa") as caught:
        load_packed(Tagger, path)
    assert len(str(caught.value)) < 2000


def test_damaged_positions_with_a_right_checksum_is_refused(tmp_path: Path) -> None:
    model, _ = packed_tagger()
    path = tmp_path / "tagger"
    save_packed(model, path)
    tensors, metadata = load_tensors(path)
    tensors["rnn.weight_hh_l0.bits"][20:] = 255
    save_tensors(path, tensors, metadata)
    with pytest.raises(UserError, match=r"rnn.weight_hh_l0.values has shape .*, and \d+ weights exist"):
        load_packed(Tagger, path)


def test_what_the_file_lacks_must_not_be_on_the_meta_device(tmp_path: Path) -> None:
    class WithTable(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(6, 8))
            self.register_buffer("table", torch.ones(3), persistent=False)

    model = WithTable()
    Sparsifier(model, sparsity=0.5, rewirings=1)
    save_packed(pack(model), tmp_path / "model")
    assert torch.equal(load_packed(WithTable, tmp_path / "model").table, torch.ones(3))

    def on_meta() -> WithTable:
        with torch.device("meta"):
            return WithTable()

    with pytest.raises(UserError, match=r"table is not in .* make the model on the CPU"):
        load_packed(on_meta, tmp_path / "model")


def test_only_tensors_are_saved(tmp_path: Path) -> None:
    class WithState(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

    with pytest.raises(TypeError, match="WithState has extra state: only tensors can be saved"):
        save_packed(WithState(2, 3), tmp_path / "model")
