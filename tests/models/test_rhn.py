from __future__ import annotations

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

from reference import highway_loop
from selfish_rnn.models import RecurrentHighwayNetwork, regularisers, rhn
from selfish_rnn.models.cells.highway import HighwayCell
from selfish_rnn.sparsifier.selection import gate_layouts


def small(**changes: float) -> RecurrentHighwayNetwork:
    torch.manual_seed(5)
    return RecurrentHighwayNetwork(13, **{"hidden": 6, "depth": 3, **changes}).double()


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_cell_agrees_with_the_reference_loop(depth: int, masked: bool) -> None:
    cell = HighwayCell(5, 4, depth).double()
    inputs, state = (torch.randn(*shape, dtype=torch.float64) for shape in ((6, 3, 5), (3, 4)))
    mask = regularisers.dropout_mask((3, 4), 0.3, state) if masked else None
    leaves = [inputs.requires_grad_(), state.requires_grad_(), *cell.parameters()]
    got, want = cell(inputs, state, mask), highway_loop(cell, inputs, state, mask)
    torch.testing.assert_close(got, want)
    probe = torch.randn_like(want)
    torch.testing.assert_close(torch.autograd.grad(got, leaves, probe), torch.autograd.grad(want, leaves, probe))


def test_cell_passes_gradcheck() -> None:
    cell = HighwayCell(2, 2, 2).double()
    inputs, state = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 2, 2), (2, 2)))
    mask = torch.tensor([[0.0, 1.5], [1.5, 1.5]], dtype=torch.float64)
    names = [name for name, _ in cell.named_parameters()]

    def run(inputs: Tensor, state: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(cell, dict(zip(names, weights, strict=True)), (inputs, state, mask))

    assert torch.autograd.gradcheck(run, (inputs, state, *cell.parameters()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
def test_golden(dtype: torch.dtype, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = Golden("rhn", dtype)
    model = RecurrentHighwayNetwork(19, hidden=7, depth=golden.number("depth")).to(dtype)
    names = {"embedding.weight": "emb", "decoder.bias": "out_bias"}
    names |= {"cell.weight_input": "W_in", "cell.bias_input": "bW_in"}
    for level in range(3):
        names[f"cell.weight_recurrent_{level + 1}"] = f"R_{level}"
        names[f"cell.bias_recurrent_{level + 1}"] = f"bR_{level}"
    model.load_state_dict({ours: golden[theirs] for ours, theirs in names.items()} | {"decoder.weight": golden["emb"]})
    masks = iter([golden[f"{name}_mask"] for name in ("word", "in", "hid", "out")])

    def given_mask(shape: tuple[int, ...], probability: float, reference: Tensor) -> Tensor:
        mask = next(masks)
        assert mask.shape == tuple(shape)
        return mask

    monkeypatch.setattr(regularisers, "dropout_mask", given_mask)
    monkeypatch.setattr(rhn, "dropout_mask", given_mask)
    model.train(masked)
    suffix, prefix = ("_masked", "grad_masked_") if masked else ("", "grad_")
    encoded = model.encode(golden["tokens"], (golden["h0"],))
    loss = model.loss(encoded.output, golden["targets"])
    loss.backward()
    golden.check(encoded.raw, f"hs{suffix}")
    golden.check(encoded.state[0], f"hT{suffix}")
    golden.check(model.logits(encoded.output), f"logits{suffix}")
    golden.check(loss, f"loss{suffix}")
    for ours, theirs in names.items():
        golden.check_gradient(model.get_parameter(ours), f"{prefix}{theirs}")


def test_paper_size() -> None:
    with torch.device("meta"):
        assert parameter_count(RecurrentHighwayNetwork(10_000)) == 23_484_060


def test_interface() -> None:
    model = small()
    randomised(model)
    check_carried_state(model, 13)
    check_dropout(model, 13)
    check_loss_is_that_of_logits(model, 13)


@pytest.mark.parametrize("name", ["word", "input", "hidden", "output"])
def test_each_dropout_alone(name: str) -> None:
    off = {f"dropout_{other}": 0.0 for other in ("word", "input", "hidden", "output")}
    check_dropout(small(**off | {f"dropout_{name}": 0.5}), 13)


def test_transform_bias() -> None:
    model = small(transform_bias=-2.0)
    lower = slice(6, 12)
    assert not model.cell.bias_input[lower].any()
    assert all((bias[lower] == -2).all() for bias in model.cell.recurrent_biases())
    bound = 1 / 6**0.5
    assert all(bias[:6].abs().max() <= bound for bias in model.cell.recurrent_biases())
    assert all(bias.abs().max() <= bound for bias in small().cell.recurrent_biases())


def test_both_gates_of_every_matrix_are_known() -> None:
    cell = small().cell
    layouts = gate_layouts(cell)
    assert list(layouts) == ["weight_input", *(f"weight_recurrent_{level}" for level in (1, 2, 3))]
    for name, layout in layouts.items():
        assert layout.names == ("nonlinear", "transform")
        assert layout.rows == cell.get_parameter(name).shape[0]
