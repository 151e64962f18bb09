"""Exports for xiph's runtime, read and computed as its C code does it."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from selfish_rnn import Sparsifier, engine, pack
from selfish_rnn.integrations.xiph import XiphLayer, export_xiph

Array = npt.NDArray[np.generic]
KINDS = {0: np.dtype("<f4"), 1: np.dtype("<i4"), 3: np.dtype("i1")}


def read(path: Path) -> dict[str, Array]:
    """The arrays of a weight file, with the checks of xiph's reader."""
    data, arrays = path.read_bytes(), {}
    while data:
        head, version, kind, size, block, name = struct.unpack("<4siiii44s", data[:64])
        assert head == b"DNNw"
        assert version == 0
        assert 0 < size <= block <= len(data) - 64
        assert block % 64 == 0
        assert name[-1] == 0
        arrays[name.rstrip(b"\0").decode()] = np.frombuffer(data[64 : 64 + size], KINDS[kind])
        data = data[64 + block :]
    return arrays


class Linear:
    """``compute_linear`` of xiph in plain loops over blocks, with signed or unsigned activations."""

    def __init__(self, arrays: dict[str, Array], name: str, inputs: int, outputs: int) -> None:
        self.arrays = {
            key.removeprefix(f"{name}_"): array for key, array in arrays.items() if key.startswith(f"{name}_")
        }
        self.inputs, self.outputs = inputs, outputs

    def blocks(self) -> list[tuple[int, int]]:
        """The first row and first column of every block, in the order of the weights."""
        if "weights_idx" not in self.arrays:
            return [(row, column) for row in range(0, self.outputs, 8) for column in range(0, self.inputs, 4)]
        index, found, row = iter(self.arrays["weights_idx"].tolist()), [], 0
        for count in index:
            for _ in range(count):
                column = next(index)
                assert column % 4 == 0
                assert column + 3 < self.inputs
                found.append((row, column))
            row += 8
        assert row == self.outputs
        return found

    def __call__(self, x: npt.NDArray[np.float64], unsigned: bool = False) -> npt.NDArray[np.float64]:
        out = np.zeros(self.outputs)
        if "weights_float" in self.arrays:
            weights = self.arrays["weights_float"].astype(np.float64)
            if "weights_idx" in self.arrays:
                for (row, column), block in zip(self.blocks(), weights.reshape(-1, 4, 8), strict=True):
                    out[row : row + 8] += x[column : column + 4] @ block
            else:
                out += x @ weights.reshape(self.inputs, self.outputs)
            bias = self.arrays["bias"]
        else:
            rounded = np.floor(0.5 + 127 * x).astype(np.int64) + (127 if unsigned else 0)
            weights = self.arrays["weights_int8"].astype(np.int64).reshape(-1, 8, 4)
            sums = np.zeros(self.outputs, dtype=np.int64)
            for (row, column), block in zip(self.blocks(), weights, strict=True):
                sums[row : row + 8] += block @ rounded[column : column + 4]
                assert np.abs(block[:, ::2] + block[:, 1::2]).max() <= 129  # what vpmaddubsw adds up in 16 bits
            out += sums * self.arrays["scale"]
            bias = self.arrays["subias" if unsigned else "bias"]
        out += bias
        if "weights_diag" in self.arrays:
            out += self.arrays["weights_diag"] * np.tile(x, self.outputs // self.inputs)
        return out

    def dense(self) -> npt.NDArray[np.float64]:
        """The matrix that the rounded weights make."""
        return np.stack([self(unit) - self(np.zeros(self.inputs)) for unit in np.eye(self.inputs)], axis=1)


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def gru_step(
    given: Linear, recurrent: Linear, state: npt.NDArray[np.float64], x: npt.NDArray[np.float64], unsigned: bool = False
) -> npt.NDArray[np.float64]:
    """``compute_generic_gru``: gates z, r, h."""
    from_input, from_state = np.split(given(x, unsigned), 3), np.split(recurrent(state, unsigned), 3)
    z, r = sigmoid(from_input[0] + from_state[0]), sigmoid(from_input[1] + from_state[1])
    return z * state + (1 - z) * np.tanh(from_input[2] + r * from_state[2])


def in_blocks(weight: Tensor, density: float, diagonal: bool, seed: int) -> None:
    """Keep some 8x4 blocks of a matrix, and its diagonals."""
    rows, columns = weight.shape
    kept = torch.rand(rows // 8, columns // 4, generator=torch.Generator().manual_seed(seed)) < density
    mask = kept.repeat_interleave(8, 0).repeat_interleave(4, 1)
    if diagonal:
        mask[torch.arange(rows), torch.arange(rows) % columns] = True
    with torch.no_grad():
        weight.mul_(mask)


class Denoiser(nn.Module):
    """The layers of a small denoiser."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(8, 16, 3)
        self.gru = nn.GRU(16, 24)
        self.gains = nn.Linear(24, 8)
        self.voice = nn.Linear(24, 1)
        in_blocks(self.gru.weight_ih_l0, 0.5, False, 1)
        in_blocks(self.gru.weight_hh_l0, 0.3, True, 2)


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
def test_a_gru_computes_what_torch_does_but_for_rounding(tmp_path: Path, unsigned: bool) -> None:
    model = Denoiser()
    layers = {layer.name: layer for layer in export_xiph(model, tmp_path / "weights.bin")}
    arrays = read(tmp_path / "weights.bin")
    given, recurrent = Linear(arrays, "gru_input", 16, 72), Linear(arrays, "gru_recurrent", 24, 72)
    assert layers["gru_input"].sparse
    assert layers["gru_recurrent"].quantized
    assert layers["gru_recurrent"].blocks == len(recurrent.blocks())

    # With the rounded weights in place, torch differs by the rounding of activations only: half of 1/127 each.
    rounded = Denoiser()
    order = torch.cat([torch.arange(24, 48), torch.arange(24), torch.arange(48, 72)])  # r, z, n of z, r, h
    with torch.no_grad():
        for weight, layer in ((rounded.gru.weight_ih_l0, given), (rounded.gru.weight_hh_l0, recurrent)):
            weight.copy_(torch.from_numpy(layer.dense())[order])
    for name in ("weight_ih_l0", "weight_hh_l0"):
        before, after = getattr(model.gru, name).detach(), getattr(rounded.gru, name).detach()
        assert torch.equal(before == 0, after == 0) or int(((before == 0) != (after == 0)).sum()) < 20  # tiny weights
        largest = before.abs().amax(1, keepdim=True)
        assert ((before - after).abs() <= largest / 127).all()
    x = 2 * torch.rand(50, 1, 16) - 1
    with torch.no_grad():
        expected, exact = rounded.gru(x)[0][:, 0].double().numpy(), model.gru(x)[0][:, 0].double().numpy()
    state, outputs = np.zeros(24), []
    for frame in x[:, 0].double().numpy():
        state = gru_step(given, recurrent, state, frame, unsigned)
        outputs.append(state)
    assert np.abs(np.stack(outputs) - expected).max() < 0.01
    assert np.abs(np.stack(outputs) - exact).max() < 0.02


def test_signed_and_unsigned_activations_give_the_same_sums(tmp_path: Path) -> None:
    layers = export_xiph(Denoiser(), tmp_path / "weights.bin")
    arrays = read(tmp_path / "weights.bin")
    for layer in layers:
        linear = Linear(arrays, layer.name, layer.inputs, layer.outputs)
        x = 2 * np.random.default_rng(0).random(layer.inputs) - 1
        np.testing.assert_allclose(linear(x, unsigned=True), linear(x), atol=1e-5)


def test_linear_layers_and_convolutions_compute_what_torch_does(tmp_path: Path) -> None:
    model = Denoiser()
    layers = {layer.name: layer for layer in export_xiph(model, tmp_path / "weights.bin")}
    arrays = read(tmp_path / "weights.bin")
    x = np.random.default_rng(0).uniform(-1, 1, (3, 8))
    conv = Linear(arrays, "conv", 24, 16)(x.reshape(-1))  # the memory holds frame after frame
    with torch.no_grad():
        expected = model.conv(torch.from_numpy(x.T).float()[None])[0, :, 0]
    np.testing.assert_allclose(conv, expected, atol=0.03)
    state = np.random.default_rng(1).uniform(-1, 1, 24)
    for name, tolerance in (("gains", 0.03), ("voice", 1e-6)):  # one output is no group of 8 rows: floats
        layer = layers[name]
        assert layer.quantized == (name == "gains")
        with torch.no_grad():
            expected = getattr(model, name)(torch.from_numpy(state).float())
        np.testing.assert_allclose(Linear(arrays, name, layer.inputs, layer.outputs)(state), expected, atol=tolerance)


def test_float_weights_are_stored_by_columns(tmp_path: Path) -> None:
    model = Denoiser()
    export_xiph(model, tmp_path / "weights.bin", precision="float32")
    arrays = read(tmp_path / "weights.bin")
    assert not any(name.endswith("int8") for name in arrays)
    dense = Linear(arrays, "gru_recurrent", 24, 72).dense()
    order = torch.cat([torch.arange(24, 48), torch.arange(24), torch.arange(48, 72)])
    np.testing.assert_allclose(dense[order.numpy()], model.gru.weight_hh_l0.detach(), rtol=1e-6, atol=1e-7)


def test_the_size_is_that_of_the_blocks(tmp_path: Path) -> None:
    """32 bytes a block and four of its index: 1.125 bytes for each weight."""
    torch.manual_seed(0)
    model = nn.GRU(64, 64)
    sparsifier = Sparsifier(model, sparsity=0, method="dense", include=["weight_*"])
    sparsifier.detach()
    for number, weight in enumerate((model.weight_ih_l0, model.weight_hh_l0)):
        in_blocks(weight, 0.3, False, number)
    for layer in export_xiph(model, tmp_path / "weights.bin", names={"": "gru"}):
        data = sum(layer.arrays[f"{layer.name}_weights_{kind}"].nbytes for kind in ("int8", "idx"))
        assert data == 36 * layer.blocks + 4 * 192 // 8


@pytest.mark.skipif(not engine.available(), reason="needs the packed engine")
def test_a_packed_model_exports_the_same_file(tmp_path: Path) -> None:
    files = []
    for packed in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.GRU(32, 32), nn.Linear(32, 16))
        Sparsifier(model, sparsity=0.9, rewirings=2, seed=1).detach()
        files.append(tmp_path / f"{packed}.bin")
        with pytest.warns(UserWarning, match='train with granularity="8x4"'):
            export_xiph(pack(model) if packed else model, files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()


def test_c_arrays_compile_and_are_the_file(tmp_path: Path) -> None:
    layers = export_xiph(Denoiser(), tmp_path / "denoiser.c")
    source, header = (tmp_path / "denoiser.c").read_text(), (tmp_path / "denoiser.h").read_text()
    assert "LinearLayer gru_recurrent;" in header
    assert (
        'linear_init(&model->gru_recurrent, arrays, "gru_recurrent_bias", "gru_recurrent_subias", '
        '"gru_recurrent_weights_int8", NULL, "gru_recurrent_weights_idx", "gru_recurrent_weights_diag", '
        '"gru_recurrent_scale", 24, 72)'
    ) in source
    values = re.search(r"gru_recurrent_weights_int8\[\d+\] = \{(.*?)\}", source, re.DOTALL)
    assert values is not None
    written = np.array([int(value) for value in values[1].split(",")])
    (layer,) = (layer for layer in layers if layer.name == "gru_recurrent")
    assert np.array_equal(written, layer.arrays["gru_recurrent_weights_int8"])
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "nnet.h").write_text(
        "typedef signed char opus_int8;\n"
        "enum { WEIGHT_TYPE_float, WEIGHT_TYPE_int, WEIGHT_TYPE_qweight, WEIGHT_TYPE_int8 };\n"
        "typedef struct { const char *name; int type; int size; const void *data; } WeightArray;\n"
        "typedef struct { const float *bias; } LinearLayer;\n"
        "int linear_init(LinearLayer *, const WeightArray *, const char *, const char *, const char *, const char *,\n"
        "                const char *, const char *, const char *, int, int);\n"
    )
    command = [compiler, "-std=c99", "-Wall", "-Werror", "-c", "denoiser.c", "-o", "denoiser.o"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_layers_of_a_deep_gru_have_names_of_their_own(tmp_path: Path) -> None:
    layers = export_xiph(nn.GRU(8, 8, num_layers=2), tmp_path / "weights.bin", names={"": "rnn"})
    assert [layer.name for layer in layers] == ["rnn1_input", "rnn1_recurrent", "rnn2_input", "rnn2_recurrent"]
    assert all(isinstance(layer, XiphLayer) and not layer.sparse for layer in layers)


def test_a_matrix_of_zeros_is_one_block(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    nn.init.zeros_(model.weight)
    (layer,) = export_xiph(model, tmp_path / "weights.bin")
    assert layer.blocks == 1
    assert not Linear(read(tmp_path / "weights.bin"), "linear", 8, 8).dense().any()


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (nn.LSTM(8, 8), {}, "is of type LSTM, which xiph's runtime does not have"),
        (nn.GRU(8, 8, bidirectional=True), {}, "is bidirectional"),
        (nn.Conv1d(8, 8, 3, padding=1), {}, "groups, dilation, stride or padding"),
        (nn.Linear(8, 8), {"out": "x"}, "names= has 'out'"),
        (nn.Linear(8, 8), {"": "x" * 40}, "more than 43 letters"),
        (nn.Linear(8, 8), {"": "a b"}, "cannot be a name in C"),
        (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), {"0": "x", "1": "x"}, "two layers are called x"),
        (nn.Tanh(), {}, "no weights to export"),
    ],
)
def test_what_xiph_lacks_is_refused(tmp_path: Path, model: nn.Module, names: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export_xiph(model, tmp_path / "weights.bin", names=names)
    assert not (tmp_path / "weights.bin").exists()


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        export_xiph(model, tmp_path / "weights.bin")


def test_an_embedding_is_an_array_of_rows(tmp_path: Path) -> None:
    model = nn.ModuleDict({"words": nn.Embedding(5, 8), "out": nn.Linear(8, 8)})
    export_xiph(model, tmp_path / "tiny.c")
    assert "words" not in (tmp_path / "tiny.h").read_text().partition("typedef")[2]
    export_xiph(model, tmp_path / "weights.bin")
    rows = read(tmp_path / "weights.bin")["words_weights_float"].reshape(5, 8)
    assert np.array_equal(rows, model["words"].weight.detach())


@pytest.mark.slow
def test_the_command_line_exports_a_run(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from selfish_rnn import train_experiment
    from selfish_rnn.cli.app import app

    settings = {"epochs": 1, "train_tokens": 2000, "model": {"name": "stacked-gru", "hidden": 16, "embedding": 16}}
    train_experiment("quickstart", folder=tmp_path / "run", settings={**settings, "granularity": "1x4", "threads": 1})
    out = tmp_path / "weights.bin"
    words = ["export", str(tmp_path / "run"), "--format", "xiph", "--precision", "int8", "--out", str(out)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "rnn1_recurrent: 48 x 16, int8" in result.output
    assert "rnn1_recurrent_scale" in read(out)
