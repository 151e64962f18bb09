"""Blocks, kept diagonals and gates on other axes, in both engines."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from selfish_rnn import METHODS, GateLayout, Sparsifier, engine, pack, register_cell
from selfish_rnn.sparsifier.selection import unpackable

needs_kernels = pytest.mark.skipif(not engine.available(), reason="needs the packed engine")
CHANGING = [name for name, method in METHODS.items() if not method.stays_dense]


class Denoiser(nn.Module):
    """A GRU whose gates have 32 rows, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 32)
        self.gru = nn.GRU(32, 32)
        self.leave = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.gru(self.enter(x).tanh())[0])


def made(seed: int = 0) -> Denoiser:
    torch.manual_seed(seed)
    return Denoiser()


def epoch(model: nn.Module, sparsifier: Sparsifier, optimizer: torch.optim.Optimizer, number: int) -> None:
    """One step, and a rewiring by its gradients."""
    optimizer.zero_grad()
    x = torch.randn(6, 4, 16, generator=torch.Generator().manual_seed(number))
    with sparsifier.dense_gradients():
        model(x).square().mean().backward()
    optimizer.step()
    sparsifier.rewire()


def blocks_of(mask: Tensor, rows: int, columns: int, diagonal: bool) -> int:
    """The number of blocks that exist; each exists as a whole, but for its place on a diagonal."""
    height, width = mask.shape
    kept = torch.zeros_like(mask)
    if diagonal:
        kept[torch.arange(height), torch.arange(height) % width] = True
        assert mask[kept].all()
    count = 0
    for row in range(0, height, rows):
        for column in range(0, width, columns):
            place = slice(row, row + rows), slice(column, column + columns)
            inside = mask[place][~kept[place]]
            assert inside.all() or not inside.any()
            count += bool(inside.any())
    return count


@pytest.mark.parametrize("block", ["8x4", "16x1", "4x4", "1x4", "2x8"])
@pytest.mark.parametrize("method", CHANGING)
def test_every_method_works_on_blocks_with_an_exact_budget(method: str, block: str) -> None:
    model, diagonal = made(), block in ("8x4", "1x4")
    rows, columns = map(int, block.split("x"))
    sparsifier = Sparsifier(
        model, sparsity=0.6, method=method, rewirings=3, granularity=block, keep_diagonal=diagonal, seed=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sizes = {weight.name: weight.size // (rows * columns) for weight in sparsifier.weights}
    for number in range(4):
        counts = {
            name: blocks_of(mask, rows, columns, diagonal and "hh" in name) for name, mask in sparsifier.masks().items()
        }
        shapes = sparsifier._matrices.shapes
        part = sparsifier.method
        assert sum(counts.values()) == sum(part.counts(shapes, 0.6, min(number, 3), 3))
        assert sum(math.prod(shape) for shape in shapes) == sum(sizes.values())
        assert sparsifier.active_weights == sparsifier.target_weights
        if number < 3:
            epoch(model, sparsifier, optimizer, number)


@needs_kernels
@pytest.mark.parametrize("keep_diagonal", [False, True])
@pytest.mark.parametrize("method", [name for name in CHANGING if unpackable(METHODS[name]) is None])
def test_both_engines_choose_the_same_blocks(method: str, keep_diagonal: bool) -> None:
    runs = []
    for packed in (False, True):
        model = made()
        sparsifier = Sparsifier(
            model, sparsity=0.6, method=method, rewirings=3, granularity="8x4", keep_diagonal=keep_diagonal, seed=1
        )
        if packed:
            pack(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            epoch(model, sparsifier, optimizer, number)
        runs.append(sparsifier.masks())
    assert runs[0].keys() == runs[1].keys()
    for name, mask in runs[0].items():
        # Gradients differ by rounding, so at most one choice between nearly equal blocks differs.
        assert int((mask != runs[1][name]).sum()) <= (0 if method in ("selfish", "set", "static") else 2 * 32)


@settings(max_examples=15)
@given(st.sampled_from(sorted(CHANGING)), st.integers(0, 100), st.sampled_from([0.3, 0.67, 0.9]), st.booleans())
def test_single_weights_with_a_kept_diagonal(method: str, seed: int, sparsity: float, momentum: bool) -> None:
    """The budget is that of the positions off the diagonal, and the diagonal is added."""
    model = made(seed)
    sparsifier = Sparsifier(model, sparsity=sparsity, method=method, rewirings=2, keep_diagonal=True, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if momentum else 0.0)
    for number in range(2):
        epoch(model, sparsifier, optimizer, number)
        mask = sparsifier.masks()["gru.weight_hh_l0"]
        assert mask[torch.arange(96), torch.arange(96) % 32].all()
        assert sparsifier.active_weights == sparsifier.target_weights
    units = sum(weight.size for weight in sparsifier.weights) - 96
    shapes = [(96, 31) if weight.name == "gru.weight_hh_l0" else weight.shape for weight in sparsifier.weights]
    assert sum(math.prod(shape) for shape in shapes) == units
    assert sparsifier.active_weights - 96 == sum(METHODS[method].counts(shapes, sparsity, 2, 2))


def test_gates_have_densities_and_a_diagonal_as_those_of_rnnoise() -> None:
    """RNNoise keeps .5 of the candidate, .2 of the update and .3 of the reset gate, in blocks of 8x4."""
    for method in ("static", "gmp", "set"):
        model = made()
        gates = {"candidate": 0.5, "update": 0.8, "reset": 0.7}
        sparsifier = Sparsifier(
            model,
            sparsity={"*": 0, "gru.weight_*": gates},
            method=method,
            rewirings=4,
            granularity={"gru": "8x4"},
            keep_diagonal="gru.weight_hh*",
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(4):
            epoch(model, sparsifier, optimizer, number)
        for name in ("gru.weight_ih_l0", "gru.weight_hh_l0"):
            mask = sparsifier.masks()[name]
            reset, update, candidate = (blocks_of(gate, 8, 4, name == "gru.weight_hh_l0") for gate in mask.split(32))
            assert (candidate, update, reset) == (16, round(0.2 * 32), round(0.3 * 32))
        assert sparsifier.densities()["enter.weight"] == 1


def test_granularity_and_diagonals_are_checked() -> None:
    for arguments, message in (
        ({"granularity": "8x5"}, r"enter\.weight: blocks of 8x5 do not divide 16 columns .* give it a granularity"),
        ({"granularity": "12x4"}, r"do not divide gate 'all' of 32 rows \(32 = 2 \* 12 \+ 8\)"),
        ({"granularity": {"grux": "8x4"}}, "granularity= names 'grux', which matches no sparse weight"),
        ({"granularity": "big"}, 'such as "8x4"'),
        ({"keep_diagonal": "leave.weight"}, r"leave\.weight: keep_diagonal needs square gates"),
        ({"keep_diagonal": "nothing"}, "keep_diagonal= names 'nothing'"),
        ({"granularity": {"gru": "8x4"}, "method": "dsr"}, "all of them need one granularity, not 1x1, 8x4"),
    ):
        with pytest.raises(ValueError, match=message):
            Sparsifier(made(), sparsity=0.5, rewirings=2, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="and there is none"):
        Sparsifier(nn.Linear(32, 32), sparsity=0.5, rewirings=2, keep_diagonal=True)


def test_an_existing_topology_must_consist_of_blocks() -> None:
    model = made()
    masks = Sparsifier(model, sparsity=0.5, method="static", granularity="8x4").masks()
    twin = Sparsifier(made(), masks=masks, rewirings=2, granularity="8x4")
    assert all(torch.equal(mask, masks[name]) for name, mask in twin.masks().items())
    single = Sparsifier(made(), sparsity=0.5, method="static").masks()
    with pytest.raises(ValueError, match=r"enter\.weight: .* whole blocks of 8x4; choose the granularity"):
        Sparsifier(made(), masks=single, rewirings=2, granularity="8x4")


def test_a_run_on_blocks_continues_identically() -> None:
    runs = []
    for resumed in (False, True):
        model = made()
        settings = {"sparsity": 0.7, "rewirings": 4, "granularity": "8x4", "keep_diagonal": True}
        sparsifier = Sparsifier(model, seed=3, **settings)  # type: ignore[arg-type]
        optimizer = torch.optim.Adam(model.parameters())
        for number in range(2):
            epoch(model, sparsifier, optimizer, number)
        if resumed:
            saved = [copy.deepcopy(each.state_dict()) for each in (model, sparsifier, optimizer)]
            model = made(5)
            sparsifier = Sparsifier(model, seed=9, **settings)  # type: ignore[arg-type]
            optimizer = torch.optim.Adam(model.parameters())
            for each, state in zip((model, sparsifier, optimizer), saved, strict=True):
                each.load_state_dict(state)  # type: ignore[attr-defined]
        for number in range(2, 4):
            epoch(model, sparsifier, optimizer, number)
        runs.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*runs, strict=True))


class StateTrackingCell(nn.Module):
    """The weights of xLSTM's sLSTM: gates on the third axis of its recurrent kernel, heads on the first."""

    def __init__(self, heads: int = 2, width: int = 8) -> None:
        super().__init__()
        self.recurrent_kernel = nn.Parameter(torch.randn(heads, width, 4, width) / 4)
        self.expand = nn.Parameter(torch.randn(heads, 2 * width, width) / 4)

    def forward(self, x: Tensor) -> Tensor:
        """One step for states of shape (batch, heads, width)."""
        gates = torch.einsum("bhi,higo->bhgo", x, self.recurrent_kernel)
        opened = gates[:, :, 0].sigmoid() * gates[:, :, 2].tanh() + gates[:, :, 1].sigmoid() * x
        return torch.einsum("bhi,hoi->bho", gates[:, :, 3].sigmoid() * opened, self.expand)


register_cell(
    StateTrackingCell,
    lambda cell: {
        "recurrent_kernel": GateLayout.even(("input", "forget", "cell", "output"), 4 * 2 * 8, axes=(2, 0, 3)),
        "expand": GateLayout.single(2 * 16, axes=(0, 1)),
    },
)


@pytest.mark.parametrize("block", ["1x1", "4x2"])
@pytest.mark.parametrize("method", CHANGING)
def test_gates_on_other_axes(method: str, block: str) -> None:
    torch.manual_seed(0)
    model = StateTrackingCell()
    sparsifier = Sparsifier(model, sparsity=0.5, method=method, rewirings=3, granularity=block, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert sparsifier._matrices.shapes == [
        (64 // int(block[0]), 8 // int(block[2])),
        (32 // int(block[0]), 8 // int(block[2])),
    ]
    for number in range(3):
        optimizer.zero_grad()
        with sparsifier.dense_gradients():
            model(torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(number))).square().mean().backward()
        optimizer.step()
        sparsifier.rewire()
        assert sparsifier.active_weights == sparsifier.target_weights
        for name, parameter in model.named_parameters():
            assert not parameter[~sparsifier.masks()[name]].any()
    assert "forget" in sparsifier.summary()
    mask = sparsifier.masks()["recurrent_kernel"].permute(2, 0, 3, 1).reshape(64, 8)
    blocks_of(mask, int(block[0]), int(block[2]), False)


def test_a_gate_on_another_axis_has_a_sparsity_of_its_own() -> None:
    torch.manual_seed(0)
    model = StateTrackingCell()
    before = model.recurrent_kernel.detach().clone()
    gates = {"input": 0.5, "forget": 0.75, "cell": 0.25, "output": 0}
    sparsifier = Sparsifier(model, sparsity={"*": 0.5, "recurrent_kernel": gates}, method="static")
    mask = sparsifier.masks()["recurrent_kernel"]
    assert [int(mask[:, :, gate].sum()) for gate in range(4)] == [64, 32, 96, 128]
    for gate, density in enumerate((0.5, 0.25, 0.75, 1.0)):  # every gate is scaled by its own density
        kept = mask[:, :, gate]
        torch.testing.assert_close(
            model.recurrent_kernel[:, :, gate][kept], before[:, :, gate][kept] / math.sqrt(density)
        )
