from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from model_checks import (
    Golden,
    check_carried_state,
    check_dropout,
    check_loss_is_that_of_logits,
    parameter_count,
    randomised,
)
from torch import Tensor

from reference import ordered_neurons_loop
from selfish_rnn import Sparsifier, engine
from selfish_rnn.errors import UserError
from selfish_rnn.models import OrderedNeuronsLSTM, regularisers
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell
from selfish_rnn.sparsifier.selection import gate_layouts

OFF = dict.fromkeys(("dropout_word", "dropout_input", "dropout_hidden", "dropout_output", "weight_drop"), 0.0)
NAMES = {"weight_input": "W_in", "bias_input": "b_in", "weight_recurrent": "W_rec", "bias_recurrent": "b_rec"}
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def small(**changes: float) -> OrderedNeuronsLSTM:
    torch.manual_seed(5)
    return OrderedNeuronsLSTM(13, **{"embedding": 6, "hidden": 8, "chunk": 2, **changes}).double()


@pytest.mark.parametrize(("hidden", "chunk"), [(6, 2), (6, 6), (5, 1)])
def test_cell_agrees_with_the_reference_loop(hidden: int, chunk: int) -> None:
    cell = OrderedNeuronsCell(4, hidden, chunk).double()
    randomised(cell)
    inputs, start, c = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((7, 3, 4), (3, hidden), (3, hidden))
    )
    leaves = [inputs, start, c, *cell.parameters()]
    got, want = cell(inputs, start, c), ordered_neurons_loop(cell, inputs, start, c)
    torch.testing.assert_close(tuple(got[:2]), want)
    probes = tuple(torch.randn_like(tensor) for tensor in want)
    torch.testing.assert_close(torch.autograd.grad(got[:2], leaves, probes), torch.autograd.grad(want, leaves, probes))


def test_cell_passes_gradcheck() -> None:
    cell = OrderedNeuronsCell(2, 4, 2).double()
    randomised(cell)
    starts = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 2, 2), (2, 4), (2, 4))]
    names = [name for name, _ in cell.named_parameters()]

    def run(inputs: Tensor, hidden: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        values = dict(zip(names, weights, strict=True))
        return tuple(torch.func.functional_call(cell, values, (inputs, hidden, c))[:2])

    assert torch.autograd.gradcheck(run, (*starts, *cell.parameters()))


def golden_cells(golden: Golden, weight_drop: float = 0.0) -> list[OrderedNeuronsCell]:
    sizes = golden["sizes"].tolist()
    cells = []
    for layer, (inputs, hidden) in enumerate(itertools.pairwise(sizes)):
        cell = OrderedNeuronsCell(inputs, hidden, golden.number("chunk_size"), weight_drop).to(golden.dtype)
        cell.load_state_dict({ours: golden[f"{theirs}_l{layer}"] for ours, theirs in NAMES.items()})
        cells.append(cell)
    return cells


@PRECISIONS
def test_golden_stack(dtype: torch.dtype) -> None:
    golden = Golden("onlstm_stack", dtype)
    cells = golden_cells(golden)
    entering = inputs = golden["x"].requires_grad_()
    forget, written, penalty = [], [], torch.zeros((), dtype=dtype)
    for layer, cell in enumerate(cells):
        output = cell(entering, golden[f"h0_l{layer}"], golden[f"c0_l{layer}"].flatten(1))
        golden.check(output.hidden, f"hs_l{layer}")
        golden.check(output.hidden[-1], f"hT_l{layer}")
        golden.check(output.cell.view_as(golden[f"cT_l{layer}"]), f"cT_l{layer}")
        forget.append(output.forget_distance)
        written.append(output.input_distance)
        penalty = penalty + output.cell.square().sum()
        entering = output.hidden
    golden.check(entering, "out")
    golden.check(torch.stack(forget), "dist_forget")
    golden.check(torch.stack(written), "dist_in")
    loss = (golden["probe"] * entering).sum() + 0.1 * penalty
    golden.check(loss, "loss")
    loss.backward()
    golden.check_gradient(inputs, "grad_x")
    for layer, cell in enumerate(cells):
        for ours, theirs in NAMES.items():
            golden.check_gradient(cell.get_parameter(ours), f"grad_{theirs}_l{layer}")


@PRECISIONS
@pytest.mark.parametrize("training", [False, True])
def test_golden_drop_connect(dtype: torch.dtype, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden("onlstm_stack", dtype)
    probability = float(golden["dropconnect_p"])
    factors = iter([1 - golden[f"dropmask_l{layer}"] for layer in range(3)])
    monkeypatch.setattr(regularisers, "drop_factors", lambda *_: next(factors))
    entering = golden["x"]
    for layer, cell in enumerate(golden_cells(golden, probability)):
        before = cell.weight_recurrent.detach().clone()
        output = cell.train(training)(entering, golden[f"h0_l{layer}"], golden[f"c0_l{layer}"].flatten(1))
        entering = output.hidden
        assert torch.equal(before, cell.weight_recurrent)
    golden.check(entering, "out_train_dropconnect" if training else "out_eval_dropconnect")


@PRECISIONS
def test_golden_language_model(dtype: torch.dtype) -> None:
    golden = Golden("onlstm_lm", dtype)
    sizes = {ours: golden.number(theirs) for ours, theirs in SIZES.items()}
    model = OrderedNeuronsLSTM(golden.number("vocab"), **sizes, **OFF).to(dtype)
    names = {"embedding.weight": "emb", "decoder.bias": "out_bias"}
    for layer in range(3):
        names |= {f"cells.{layer}.{ours}": f"{theirs}_l{layer}" for ours, theirs in NAMES.items()}
    values = {ours: golden[theirs] for ours, theirs in names.items()}
    model.load_state_dict(values | {"decoder.weight": golden["emb"]})

    encoded = model.encode(golden["tokens"], model.initial_state(3))
    golden.check(model.logits(encoded.output), "logits")
    golden.check_training(model, encoded, "ce", names)


SIZES = {"embedding": "emsize", "hidden": "nhid", "layers": "nlayers", "chunk": "chunk_size"}


def test_paper_size() -> None:
    with torch.device("meta"):
        assert parameter_count(OrderedNeuronsLSTM(10_000)) == 25_232_180


@pytest.mark.parametrize("layers", [1, 3])
def test_interface(layers: int) -> None:
    model = small(layers=layers)
    randomised(model)
    check_carried_state(model, 13)
    check_dropout(model, 13)
    check_loss_is_that_of_logits(model, 13)


@pytest.mark.parametrize("name", list(OFF))
def test_each_dropout_alone(name: str) -> None:
    check_dropout(small(**OFF | {name: 0.5}), 13)


def test_distances() -> None:
    model = small().eval()
    tokens = torch.randint(13, (5, 2))
    distances = model.distances(tokens)
    assert distances.forget.shape == distances.input.shape == (3, 5, 2)
    for distance in distances:
        assert (distance >= 0).all()
        assert (distance <= 1).all()
    after = model.encode(tokens[:2], model.initial_state(2)).state
    torch.testing.assert_close(model.distances(tokens[2:], after).forget, distances.forget[:, 2:])


def test_six_gates_of_unequal_size() -> None:
    for cell in small().cells:
        for name, layout in gate_layouts(cell).items():
            assert layout.rows == cell.get_parameter(name).shape[0]
    with torch.device("meta"):
        layout = gate_layouts(OrderedNeuronsCell(400, 1150, 10))["weight_recurrent"]
    assert dict(zip(layout.names, layout.sizes, strict=True)) == {
        "master_input": 115,
        "master_forget": 115,
        "output": 1150,
        "candidate": 1150,
        "input": 1150,
        "forget": 1150,
    }


def test_chunk_must_divide_every_width() -> None:
    with pytest.raises(UserError, match="does not divide 6"):
        small(chunk=4)


def with_extreme_master_gates(pattern: list[float]) -> OrderedNeuronsCell:
    """A cell whose master gates have exactly the logits of this pattern, times 10,000, whatever its inputs are."""
    cell = OrderedNeuronsCell(3, 8, 2)
    randomised(cell)
    with torch.no_grad():
        rows = 2 * len(pattern)
        cell.bias_input[:rows] = 1e4 * torch.tensor(pattern * 2)
        for other in (cell.bias_recurrent, cell.weight_input, cell.weight_recurrent):
            other[:rows] = 0
    return cell


@pytest.mark.parametrize("engine_name", ["dense", "packed"])
@pytest.mark.parametrize(
    "pattern",
    [[1, -1, -1, -1], [-1, -1, -1, 1], [1, 1, 1, 1], [-1, -1, -1, -1], [-1, 1, 1, -1], [1, -1, 1, -1]],
    ids=str,
)
def test_extreme_logits_of_the_master_gates(pattern: list[float], engine_name: str) -> None:
    """The exponentials would overflow without the largest logit taken off; logits of equal size share one."""
    cell = with_extreme_master_gates(pattern)
    exact = copy.deepcopy(cell).double()
    window = [torch.randn(*shape, generator=torch.Generator().manual_seed(4)) for shape in ((5, 3, 3), (3, 8), (3, 8))]
    mine = [tensor.clone().requires_grad_() for tensor in window]
    theirs = [tensor.double().requires_grad_() for tensor in window]
    run: Any = cell
    if engine_name == "packed":
        if not engine.available():
            pytest.skip("needs the packed engine")
        holder = torch.nn.Sequential(cell)
        Sparsifier(holder, sparsity=0, method="static")
        run = engine.pack(holder, strict=True)[0]
    got, want = run(*mine)[:2], ordered_neurons_loop(exact, *theirs)
    for output, expected in zip(got, want, strict=True):
        assert torch.isfinite(output).all()
        torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)
    torch.cat([output.flatten() for output in got]).square().sum().backward()
    torch.cat([output.flatten() for output in want]).square().sum().backward()
    for tensor, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(tensor.grad.double(), expected.grad, rtol=1e-3, atol=1e-4)
    bias = dict(run.named_parameters())["bias_input"].grad
    assert torch.isfinite(bias).all()
    torch.testing.assert_close(bias.double(), exact.bias_input.grad, rtol=1e-3, atol=1e-4)
