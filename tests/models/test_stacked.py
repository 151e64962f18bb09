from __future__ import annotations

import pytest
import torch
from model_checks import (
    Golden,
    check_carried_state,
    check_dropout,
    check_loss_is_that_of_logits,
    parameter_count,
)
from torch import nn

from selfish_rnn.errors import UserError
from selfish_rnn.models import MODELS, StackedRNN
from selfish_rnn.models.base import detach
from selfish_rnn.sparsifier.selection import gate_layouts

NAMES = ("stacked-lstm", "stacked-gru", "stacked-rnn")


def small(name: str = "stacked-lstm", **changes: object) -> StackedRNN:
    torch.manual_seed(3)
    model = MODELS[name](13, **{"embedding": 5, "hidden": 6, **changes})
    assert isinstance(model, StackedRNN)
    return model.double()


def test_paper_size() -> None:
    with torch.device("meta"):
        assert parameter_count(StackedRNN(10_000)) == 66_034_000
        assert parameter_count(StackedRNN(10_000, embedding=700, hidden=700)) == 21_861_200


def test_initialisation() -> None:
    model = StackedRNN(400, embedding=64, hidden=100)
    assert model.embedding.weight.abs().max() <= 0.1
    assert model.decoder.weight.abs().max() <= 0.1
    assert not model.decoder.bias.any()
    for parameter in model.rnn.parameters():
        assert 0.095 < parameter.abs().max() <= 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_losses_and_gradient_norms(dtype: torch.dtype) -> None:
    """The dense training trace, with its updates written out."""
    golden = Golden("train_dense", dtype)
    model = StackedRNN(20, embedding=10, hidden=10, dropout=0).to(dtype)
    names = {
        "embedding.weight": "emb",
        "decoder.weight": "dec_W",
        "decoder.bias": "dec_b",
        **{
            f"rnn.{ours}_l{layer}": f"{theirs}_l{layer}"
            for layer in (0, 1)
            for ours, theirs in (
                ("weight_ih", "W_in"),
                ("weight_hh", "W_rec"),
                ("bias_ih", "b_in"),
                ("bias_hh", "b_rec"),
            )
        },
    }
    model.load_state_dict({ours: golden[f"init_{theirs}"] for ours, theirs in names.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=float(golden["lr"]))
    stream, window = golden["stream"], golden.number("bptt")
    state, losses, norms = model.initial_state(4), [], []
    for row in range(0, 20 * window, window):
        encoded = model.encode(stream[row : row + window], detach(state))
        loss = model.loss(encoded.output, stream[row + 1 : row + 1 + window])
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), float(golden["clip"])))
        optimizer.step()
        losses.append(loss.detach())
        state = encoded.state
    golden.check(torch.stack(losses), "step_losses")
    golden.check_gradient_value(torch.stack(norms), "grad_norms")
    golden.check(state[0], "hT")
    golden.check(state[1], "cT")
    for ours, theirs in names.items():
        golden.check_gradient_value(model.get_parameter(ours), f"final_{theirs}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 3])
def test_interface(name: str, layers: int) -> None:
    model = small(name, layers=layers)
    check_carried_state(model, 13)
    check_dropout(model, 13)
    check_loss_is_that_of_logits(model, 13)
    scores, state = model(torch.randint(13, (4, 2)))
    assert scores.shape == (4, 2, 13)
    assert len(state) == (2 if name == "stacked-lstm" else 1)


def test_dropout_spares_only_the_recurrence() -> None:
    model = small(dropout=0.5, layers=1).train()
    encoded = model.encode(torch.zeros(50, 40, dtype=torch.long), model.initial_state(40))
    dropped = encoded.output == 0
    assert 0.45 < dropped.double().mean() < 0.55
    torch.testing.assert_close(encoded.output[~dropped], 2 * encoded.raw[~dropped])
    assert not (encoded.raw == 0).any()


def test_tied() -> None:
    model = small(embedding=6, tied=True)
    assert model.decoder.weight is model.embedding.weight
    assert parameter_count(model) == parameter_count(small(embedding=6)) - 13 * 6


@pytest.mark.parametrize("name", NAMES)
def test_gate_layouts_cover_the_rows(name: str) -> None:
    model = small(name)
    layouts = gate_layouts(model.rnn)
    assert len(layouts) == 4
    assert all(layout.rows == model.rnn.get_parameter(key).shape[0] for key, layout in layouts.items())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dropout": 1.0}, "dropout must be"),
        ({"hidden": 0}, "hidden must be"),
        ({"tied": True}, "same size"),
        ({"cell": "lstmm"}, "one of lstm, gru, rnn"),
    ],
)
def test_bad_arguments_are_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        StackedRNN(13, **{"embedding": 5, "hidden": 6, **wrong})
