from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selfish_rnn import SELFISH, Sparsifier, engine
from selfish_rnn.analysis.networks import gate_densities
from selfish_rnn.models import MODELS
from selfish_rnn.models.cells.highway import HighwayCell
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell
from selfish_rnn.sparsifier import selection as registry
from selfish_rnn.sparsifier.selection import gate_layouts, layer_weights, register_cell
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
    monkeypatch.setattr("selfish_rnn.sparsifier.selection._known_cells", {})
    assert gate_layouts(OwnCell()) == {}
    layout = GateLayout(("master", "output"), (2, 4))
    register_cell(OwnCell, lambda cell: {"mixing": layout})
    assert gate_layouts(OwnCell()) == {"mixing": layout}
    assert gate_layouts(OwnerOfAnotherName()) == {"mixing": layout}
    register_cell(OwnerOfAnotherName, lambda cell: {"mixing": GateLayout.single(6)})
    assert gate_layouts(OwnerOfAnotherName()) == {"mixing": GateLayout.single(6)}
    assert gate_layouts(OwnCell()) == {"mixing": layout}


@pytest.fixture
def registrations() -> Iterator[None]:
    """Registrations of a test end with it."""
    before = registry._known_cells.copy()
    yield
    registry._known_cells.clear()
    registry._known_cells.update(before)


def layer_names(model: nn.Module) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[each] for each in weights] for weights in layer_weights(model)]


@pytest.mark.parametrize(
    ("module", "layers"),
    [
        (
            nn.LSTM(3, 6, num_layers=2, proj_size=2),
            [["weight_ih_l0", "weight_hh_l0"], ["weight_ih_l1", "weight_hh_l1"]],
        ),
        (
            nn.GRU(3, 5, bidirectional=True),
            [["weight_ih_l0", "weight_hh_l0"], ["weight_ih_l0_reverse", "weight_hh_l0_reverse"]],
        ),
        (nn.RNN(3, 5), [["weight_ih_l0", "weight_hh_l0"]]),
        (nn.LSTMCell(3, 5), [["weight_ih", "weight_hh"]]),
        (nn.GRUCell(3, 5), [["weight_ih", "weight_hh"]]),
        (nn.Linear(3, 4), [["weight"]]),
        (OrderedNeuronsCell(3, 4, 2), [["weight_input", "weight_recurrent"]]),
        (
            HighwayCell(3, 4, 3),
            [["weight_input", "weight_recurrent_1"], ["weight_recurrent_2"], ["weight_recurrent_3"]],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_of_every_cell(module: nn.Module, layers: list[list[str]]) -> None:
    assert layer_names(module) == layers


@pytest.mark.parametrize("name", MODELS)
def test_every_recurrent_layer_of_the_models_has_its_input_matrix(name: str) -> None:
    """Other layers of several matrices there are none, but for the micro-steps of a recurrent highway network."""
    with torch.device("meta"):
        model = MODELS[name](11)
    layers = [layer for layer in layer_names(model) if len(layer) > 1]
    assert layers
    assert all("ih" in layer[0] or "input" in layer[0] for layer in layers)
    assert all(len(layer) == 2 for layer in layers)


class LightGRU(nn.Module):
    """Input and recurrent linear layers for both gates, in the style of LiGRU."""

    def __init__(self, inputs: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.w = nn.Linear(inputs, 2 * hidden)
        self.u = nn.Linear(hidden, 2 * hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.u.in_features)
        for _ in range(2):
            candidate, update = (self.w(x) + self.u(state)).chunk(2, -1)
            update = update.sigmoid()
            state = update * state + (1 - update) * candidate.relu()
        return state


class MinGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_hidden_and_gate = nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden, gate = self.to_hidden_and_gate(x).chunk(2, -1)
        return hidden * gate.sigmoid()


class MinLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(8, 32)
        self.hidden = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        forget, write = self.gates(x).sigmoid().chunk(2, -1)
        return self.hidden(x) * write / (forget + write)


TWO = GateLayout.even(("hidden", "gate"), 32)
CELLS: list[tuple[type[nn.Module], dict[Any, GateLayout]]] = [
    (MinGRU, {"to_hidden_and_gate.weight": TWO}),
    (MinGRU, {("to_hidden_and_gate.weight",): TWO}),
    (
        MinLSTM,
        {"gates.weight": GateLayout.even(("forget", "write"), 32), "hidden.weight": GateLayout(("hidden",), (16,))},
    ),
    (LightGRU, {"w.weight": TWO, "u.weight": TWO}),
]


@pytest.mark.usefixtures("registrations")
@pytest.mark.parametrize("packed", ["not", "after binding", "before binding"])
@pytest.mark.parametrize(("cell", "layouts"), CELLS, ids=["MinGRU", "MinGRU tuple", "MinLSTM", "LightGRU"])
def test_gates_of_a_linear_are_registered_by_its_name(
    cell: type[nn.Module], layouts: dict[Any, GateLayout], packed: str
) -> None:
    if packed != "not" and not engine.available():
        pytest.skip("needs the packed engine")
    register_cell(cell, lambda module: layouts)
    torch.manual_seed(0)
    model = nn.Sequential(cell(), nn.Linear(16, 3))
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=4, seed=1, min_side=1)
    if packed != "not":
        model = engine.pack(model, strict=True)
    if packed == "before binding":
        sparsifier.detach()
        sparsifier = Sparsifier(model, rewirings=4, seed=1, min_side=1)
    names = {f"0.{name if isinstance(name, str) else name[0]}": layout for name, layout in layouts.items()}
    gates = {weight.name: weight.gates for weight in sparsifier.weights}
    assert gates == {**names, "1.weight": GateLayout.single(3)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    count = sparsifier.active_weights
    for seed in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        optimizer.step()
        sparsifier.rewire()
    assert sparsifier.active_weights == count
    assert all(gate in sparsifier.summary() for layout in names.values() if len(layout) > 1 for gate in layout.names)
    densities = gate_densities(model)
    assert all(set(layout.names) <= densities[name].keys() for name, layout in names.items())


@pytest.mark.usefixtures("registrations")
@pytest.mark.parametrize(
    "name", ["to_gate.weight", ("to_gate.weight",), "weight", "to_hidden_and_gate.wheight"], ids=str
)
def test_a_name_that_does_not_exist_is_an_error_that_lists_those_there_are(name: Any) -> None:
    register_cell(MinGRU, lambda module: {name: TWO})
    wrong = name if isinstance(name, str) else name[0]
    message = f"MinGRU has no parameter '{wrong}', .* its weight matrices are to_hidden_and_gate.weight"
    with pytest.raises(ValueError, match=message):
        Sparsifier(nn.Sequential(MinGRU()), sparsity=0.5, rewirings=4)


@pytest.mark.usefixtures("registrations")
def test_rows_that_are_not_those_of_the_gates_are_an_error() -> None:
    register_cell(MinGRU, lambda module: {"to_hidden_and_gate.weight": GateLayout.even(("a", "b"), 30)})
    with pytest.raises(ValueError, match=r"to_hidden_and_gate\.weight has 32 rows"):
        Sparsifier(MinGRU(), sparsity=0.5, rewirings=4)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("first_in", "first_out", "second_in", "second_out", "mixing"):
            setattr(self, name, nn.Parameter(torch.randn(6, 4)))


TWO_LAYERS = [("first_in", "first_out"), ("second_in", "second_out")]


@pytest.mark.usefixtures("registrations")
@pytest.mark.parametrize(("layers", "sizes"), [(None, [5]), (lambda module: TWO_LAYERS, [2, 2])], ids=["one", "two"])
def test_a_registration_says_which_weights_are_a_layer(layers: Any, sizes: list[int]) -> None:
    """The budget is exact for every layer, and a weight in no group is a layer of its own."""
    register_cell(TwoLayers, lambda module: {n: GateLayout.single(6) for n, _ in module.named_parameters()}, layers)
    model = TwoLayers()
    assert list(map(len, layer_names(model))) == sizes
    sparsifier = Sparsifier(model, sparsity=0.5, prune_rate=0.6, rewirings=9, seed=1)
    with torch.no_grad():
        model.first_in.mul_(9)
        model.mixing.mul_(9)
    sparsifier.rewire()
    count = {weight.name: weight.count for weight in sparsifier.weights}
    assert sum(count.values()) == 60
    assert count["first_in"] > 12 > count["first_out"]
    if layers is not None:
        assert count["first_in"] + count["first_out"] == count["second_in"] + count["second_out"] == 24
        assert count["mixing"] == 12


@pytest.mark.usefixtures("registrations")
def test_a_layer_is_a_group_of_names_and_each_exists() -> None:
    layouts = {"first_in": GateLayout.single(6)}
    register_cell(TwoLayers, lambda module: layouts, lambda module: ["first_in"])
    with pytest.raises(ValueError, match=r"TwoLayers: layers= returns groups of names, .* 'first_in'"):
        Sparsifier(TwoLayers(), sparsity=0.5, rewirings=4)
    register_cell(TwoLayers, lambda module: layouts, lambda module: [("first_in", "third_in")])
    with pytest.raises(ValueError, match="TwoLayers has no parameter 'third_in'"):
        Sparsifier(TwoLayers(), sparsity=0.5, rewirings=4)


def test_only_methods_with_pool_layer_join_the_matrices_of_a_layer() -> None:
    for pool, same in (("layer", False), ("matrix", True)):
        model = nn.LSTM(5, 6)
        sparsifier = Sparsifier(model, sparsity=0.5, method=SELFISH.replace(pool=pool), rewirings=9, seed=1)
        with torch.no_grad():
            model.weight_ih_l0.mul_(9)
        sparsifier.rewire()
        assert ([weight.count for weight in sparsifier.weights] == [60, 72]) == same
