from __future__ import annotations

import subprocess
import sys
from functools import partial

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
from torch import Tensor, nn

from selfish_rnn.models import MixtureOfSoftmaxesLSTM, regularisers
from selfish_rnn.models.cells import mixture
from selfish_rnn.models.cells.mixture import DenseProduct, mixture_log_probabilities, mixture_loss
from selfish_rnn.sparsifier.selection import gate_layouts

DROPOUTS = ("dropout_word", "dropout_input", "dropout_hidden", "dropout_output", "dropout_latent", "weight_drop")
OFF = dict.fromkeys(DROPOUTS, 0.0)
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def small(**changes: float) -> MixtureOfSoftmaxesLSTM:
    torch.manual_seed(5)
    sizes = {"embedding": 6, "hidden": 8, "hidden_last": 7, "experts": 3}
    return MixtureOfSoftmaxesLSTM(13, **{**sizes, **changes}).double()


@PRECISIONS
def test_golden_head(dtype: torch.dtype) -> None:
    golden = Golden("mos_head", dtype)
    experts = golden.number("n_experts")
    sizes = {"embedding": 5, "hidden": 2, "hidden_last": 9, "layers": 1}
    model = MixtureOfSoftmaxesLSTM(23, experts=experts, **sizes, **OFF).to(dtype)
    names = {"embedding.weight": "dec_W", "decoder.bias": "dec_b", "prior.weight": "prior_W"}
    names |= {"latent.weight": "latent_W", "latent.bias": "latent_b"}
    with torch.no_grad():
        for ours, theirs in names.items():
            model.get_parameter(ours).copy_(golden[theirs])
    top = golden["h"].requires_grad_()
    golden.check(model.prior(top).softmax(-1), "mix")
    golden.check(model.logits(top), "log_probs")
    for loss in (model.loss(top, golden["targets"]), loss_of_logits(model, top, golden["targets"])):
        golden.check(loss, "loss")
        model.zero_grad()
        top.grad = None
        loss.backward()
        golden.check_gradient(top, "grad_h")
        for ours, theirs in names.items():
            golden.check_gradient(model.get_parameter(ours), f"grad_{theirs}")


def loss_of_logits(model: MixtureOfSoftmaxesLSTM, top: Tensor, targets: Tensor) -> Tensor:
    return -model.logits(top).gather(-1, targets.unsqueeze(-1)).mean()


def set_weight_drop(model: MixtureOfSoftmaxesLSTM, probability: float) -> None:
    for rnn in model.rnns:
        rnn.weight_drop = probability


@PRECISIONS
def test_golden_model(dtype: torch.dtype) -> None:
    golden = Golden("mos_full", dtype)
    sizes = {"embedding": 6, "hidden": 10, "hidden_last": 8, "layers": golden.number("nlayers")}
    model = MixtureOfSoftmaxesLSTM(21, experts=golden.number("n_experts"), **sizes, **OFF).to(dtype)
    names = {"embedding.weight": "emb", "decoder.bias": "dec_b", "prior.weight": "prior_W"}
    names |= {"latent.weight": "latent_W", "latent.bias": "latent_b"}
    for layer in range(3):
        for ours, theirs in (("weight_ih", "W_in"), ("weight_hh", "W_rec"), ("bias_ih", "b_in"), ("bias_hh", "b_rec")):
            names[f"rnns.{layer}.{ours}_l0"] = f"{theirs}_l{layer}"
    values = {ours: golden[theirs] for ours, theirs in names.items()}
    model.load_state_dict(values | {"decoder.weight": golden["emb"]})
    state = tuple(golden[f"{part}0_l{layer}"].unsqueeze(0) for layer in range(3) for part in "hc")

    model.eval()
    set_weight_drop(model, 0.5)
    encoded = model.encode(golden["tokens"], state)
    golden.check(model.logits(encoded.output), "log_probs")
    golden.check(model.loss(encoded.output, golden["targets"]), "eval_loss")
    for layer in range(3):
        golden.check(encoded.state[2 * layer][0], f"hT_l{layer}")
        golden.check(encoded.state[2 * layer + 1][0], f"cT_l{layer}")

    model.train()
    set_weight_drop(model, 0.0)
    encoded = model.encode(golden["tokens"], state)
    golden.check_training(model, encoded, "nll", names)


def mixture_inputs(positions: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    inputs = [normal(positions, 3).softmax(-1), normal(positions, 3, 4), normal(9, 4), normal(9)]
    return [tensor.requires_grad_() for tensor in inputs], torch.randint(9, (positions,), generator=generator)


@pytest.mark.parametrize("scores_at_once", [1, 60, 3 * 9 * 7, 10**6])
def test_pieces_give_the_whole(scores_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "SCORES_AT_ONCE", scores_at_once)
    inputs, targets = mixture_inputs(7)
    loss = mixture_loss(*inputs, DenseProduct(), targets)
    prior, latent, *decoder = inputs
    product = partial(nn.functional.linear, weight=decoder[0], bias=decoder[1])
    whole = -mixture_log_probabilities(prior, latent, product).gather(-1, targets.unsqueeze(-1)).mean()
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * whole, inputs))
    with torch.no_grad():
        assert mixture_loss(*inputs, DenseProduct(), targets) == loss


def test_mixture_loss_passes_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "SCORES_AT_ONCE", 60)
    inputs, targets = mixture_inputs(3)
    assert torch.autograd.gradcheck(lambda *tensors: mixture_loss(*tensors, DenseProduct(), targets), inputs)


def test_paper_size() -> None:
    with torch.device("meta"):
        model = MixtureOfSoftmaxesLSTM(33_278)
    assert parameter_count(model) == 34_909_528
    assert {name: model.get_parameter(name).numel() for name in model.dense_parameters} == {"prior.weight": 9750}


@pytest.mark.parametrize("layers", [1, 3])
def test_interface(layers: int) -> None:
    model = small(layers=layers)
    randomised(model)
    check_carried_state(model, 13)
    check_dropout(model, 13)
    check_loss_is_that_of_logits(model, 13, tolerance=1e-6)


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_alone(name: str) -> None:
    check_dropout(small(**OFF | {name: 0.5}), 13)


def test_latent_mask_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(**OFF | {"dropout_latent": 0.5})
    shapes = []

    def record(shape: tuple[int, ...], probability: float, reference: Tensor) -> Tensor:
        shapes.append((tuple(shape), probability))
        return reference.new_ones(shape)

    monkeypatch.setattr(regularisers, "dropout_mask", record)
    model.loss(torch.randn(4, 2, 7, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.long))
    assert shapes == [((1, 2, 18), 0.5)]


def test_gate_layouts_cover_the_rows() -> None:
    for rnn in small().rnns:
        layouts = gate_layouts(rnn)
        assert len(layouts) == 2
        assert all(layout.rows == rnn.get_parameter(name).shape[0] for name, layout in layouts.items())


EVALUATION = """
import resource, torch
from selfish_rnn.models import MixtureOfSoftmaxesLSTM
imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = MixtureOfSoftmaxesLSTM(33_278, embedding=60, hidden=8, hidden_last=8).eval()
tokens, targets = torch.randint(33_278, (2, 70, 10))
with torch.no_grad():
    model.loss(model.encode(tokens, model.initial_state(10)).output, targets)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - imports)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs elsewhere")
def test_evaluation_needs_little_memory() -> None:
    """The scores of a WikiText-2 window take 1.4 GB at once; the narrow layers only save time here."""
    run = subprocess.run([sys.executable, "-c", EVALUATION], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 400 * 1024  # KiB more than before
