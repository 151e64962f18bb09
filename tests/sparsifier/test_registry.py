from __future__ import annotations

import pytest
import torch
from torch import nn

from selfish_rnn.sparsifier.registry import gate_layouts, register_cell
from selfish_rnn.topology import GateLayout

LSTM = ("input", "forget", "candidate", "output")
GRU = ("reset", "update", "candidate")


@pytest.mark.parametrize(
    ("module", "gates"),
    [
        (nn.LSTM(3, 5, num_layers=2, bidirectional=True), LSTM),
        (nn.GRU(3, 5, num_layers=2, bidirectional=True), GRU),
        (nn.RNN(3, 5, num_layers=2, bidirectional=True), ("hidden",)),
        (nn.LSTMCell(3, 5), LSTM),
        (nn.GRUCell(3, 5), GRU),
        (nn.RNNCell(3, 5), ("hidden",)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_weight_of_torchs_recurrent_modules_has_its_gates(module: nn.Module, gates: tuple[str, ...]) -> None:
    layouts = gate_layouts(module)
    assert set(layouts) == {name for name, _ in module.named_parameters() if name.startswith("weight")}
    for layout in layouts.values():
        assert layout == GateLayout(gates, (5,) * len(gates))


def test_gate_order_is_torchs() -> None:
    """A forget gate closed by its bias empties the cell, whatever was in it."""
    cell = nn.LSTMCell(2, 3)
    start = {name: first for name, first, _ in gate_layouts(cell)["weight_hh"].row_ranges()}["forget"]
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.bias_ih[start : start + 3] = -100
    _, memory = cell(torch.ones(1, 2), (torch.ones(1, 3), torch.full((1, 3), 7.0)))
    assert memory.abs().max() < 1e-6


def test_projection_is_a_matrix_of_its_own() -> None:
    layouts = gate_layouts(nn.LSTM(3, 6, proj_size=2))
    assert layouts["weight_hr_l0"] == GateLayout.single(2)
    assert layouts["weight_hh_l0"] == GateLayout.even(LSTM, 24)


@pytest.mark.parametrize("module", [nn.Linear(3, 4), nn.Embedding(4, 3)])
def test_linear_and_embedding_have_no_gates(module: nn.Module) -> None:
    assert gate_layouts(module) == {"weight": GateLayout.single(4)}


def test_unknown_modules_have_nothing_to_sparsify() -> None:
    assert gate_layouts(nn.Conv2d(1, 1, 3)) == {}


class OwnCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.ones(6, 4))


class OwnerOfAnotherName(OwnCell):
    """Knows what its parent was registered for."""


def test_own_cells_are_known_after_registration_and_so_are_their_subclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfish_rnn.sparsifier.registry._known_cells", {})
    assert gate_layouts(OwnCell()) == {}
    layout = GateLayout(("master", "output"), (2, 4))
    register_cell(OwnCell, lambda cell: {"mixing": layout})
    assert gate_layouts(OwnCell()) == {"mixing": layout}
    assert gate_layouts(OwnerOfAnotherName()) == {"mixing": layout}
    register_cell(OwnerOfAnotherName, lambda cell: {"mixing": GateLayout.single(6)})
    assert gate_layouts(OwnerOfAnotherName()) == {"mixing": GateLayout.single(6)}
    assert gate_layouts(OwnCell()) == {"mixing": layout}
