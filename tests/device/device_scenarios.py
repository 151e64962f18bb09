"""Scenarios of the masked engine on the emulated device, run as a script in a process of their own.

The script takes names of scenarios, by default all. It prints, as JSON, the error of every scenario that fails, and how
often rewirings wait for the device.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable

import pytest
import torch
from emulated_device import NAME, Traffic, numbers_of, register, traffic
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from selfish_rnn import METHODS, IntrinsicSparseStructures, Sparsifier, register_cell
from selfish_rnn.engine import pack, quantize
from selfish_rnn.models import StackedRNN
from selfish_rnn.optim import NTASGD, SNTASGD
from selfish_rnn.topology import GateLayout

SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


class Minimal(nn.Module):
    """A gated cell of one ``nn.Linear`` for the input and one for the state."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(6, 10)
        self.hidden = nn.Linear(5, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = torch.zeros_like(x[0, :, :5]), []
        for token in x:
            gate, candidate = (self.inputs(token) + self.hidden(state)).chunk(2, 1)
            state = torch.lerp(state, candidate.tanh(), gate.sigmoid())
            outputs.append(state)
        return torch.stack(outputs)


register_cell(
    Minimal,
    lambda cell: {name: GateLayout.even(("gate", "candidate"), 10) for name in ("inputs.weight", "hidden.weight")},
)


class Model(nn.Module):
    """An embedding, a recurrent layer of two matrices, and a linear layer."""

    def __init__(self, rnn: Callable[[], nn.Module] = Minimal) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(12, 6)
        self.rnn = rnn()
        self.decoder = nn.Linear(5, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        output = self.rnn(self.embedding(tokens))
        return self.decoder(output if isinstance(output, Tensor) else output[0])


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: SGD(model.parameters(), lr=0.5, momentum=0.9, foreach=True),
    "Adam": lambda model: Adam(model.parameters(), lr=0.01, foreach=True),
    "Adam, one by one": lambda model: Adam(model.parameters(), lr=0.01, foreach=False),
    "SNTASGD": lambda model: SNTASGD(model.parameters(), lr=0.5),
    "NTASGD": lambda model: NTASGD(model.parameters(), lr=0.5),
}


def tokens(seed: int, device: torch.device | str) -> Tensor:
    return torch.randint(12, (3, 3), generator=torch.Generator().manual_seed(seed)).to(device)


def backward(model: nn.Module, inputs: Tensor) -> None:
    model(inputs).square().mean().backward()


def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor) -> None:
    optimizer.zero_grad()
    backward(model, inputs)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def bind(model: nn.Module, method: str = "selfish", **settings: object) -> Sparsifier:
    return Sparsifier(model, sparsity=0.5, method=method, rewirings=4, seed=3, **settings)  # type: ignore[arg-type]


def optimizer_of(model: nn.Module, kind: str) -> Optimizer:
    optimizer = OPTIMIZERS[kind](model)
    if isinstance(optimizer, SNTASGD | NTASGD):
        optimizer.start_averaging()
    return optimizer


def rewire(sparsifier: Sparsifier, model: nn.Module, inputs: Tensor) -> Traffic:
    """Rewire after one more pass, whose gradients of all positions are kept; return the traffic of the rewiring."""
    with sparsifier.dense_gradients():
        backward(model, inputs)
    with traffic() as counted:
        sparsifier.rewire()
    return counted


def host(tensor: Tensor) -> Tensor:
    return numbers_of(tensor) if tensor.device.type == NAME else tensor


def assert_on_device(sparsifier: Sparsifier, optimizer: Optimizer) -> None:
    """Check where everything is, that the budget is exact, and that no weight lies outside the topology."""
    for weight in sparsifier.weights:
        mask = sparsifier.masks()[weight.name]
        assert mask.device == weight.mask.device == weight.parameter.device == DEVICE, weight.name
        outside = ~numbers_of(mask)
        assert not numbers_of(weight.parameter.detach())[outside].any(), weight.name
        if weight.parameter.grad is not None:
            assert weight.parameter.grad.device == DEVICE, weight.name
        for key, value in optimizer.state.get(weight.parameter, {}).items():
            if key == "age" or value.ndim:
                assert value.device == DEVICE, key
    assert sparsifier.active_weights == sparsifier.target_weights


def trained(device: torch.device | str, method: str, kind: str, rewirings: int = 2) -> tuple[Model, Sparsifier]:
    """Train a model on a device, without a wait for it in any step; return it."""
    model = Model().to(device)
    sparsifier, optimizer = bind(model, method), optimizer_of(model, kind)
    for rewiring in range(rewirings):
        for number in range(2):
            inputs = tokens(number, device)
            with traffic() as counted:
                step(model, optimizer, inputs)
            assert counted.synchronizations == 0, counted.sites
            if device != "cpu":
                assert counted.operations > 0
                assert_on_device(sparsifier, optimizer)
        rewire(sparsifier, model, tokens(10 + rewiring, device))
    return model, sparsifier


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(host(a.detach()), host(b.detach())) for a, b in pairs)


# The device itself


@scenario
def the_device_refuses_tensors_of_two_devices() -> None:
    here, there = torch.ones(2, 3), torch.ones(2, 3, device=NAME)
    for mixed in (
        lambda: here + there,
        lambda: there.mul_(here),
        lambda: torch.cat([here, there]),
        lambda: torch.where(here > 0, there, there),
        lambda: there.index_fill_(0, torch.tensor([0]), 1.0),
        lambda: here[torch.zeros(2, dtype=torch.int64, device=NAME)],
        lambda: nn.functional.linear(there, here),
        lambda: torch.randn(2, device=NAME, generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match=r"same device|device type|should be either on"):
            mixed()
    assert (there + torch.ones(())).device == DEVICE  # a tensor without dimensions is a number


@scenario
def the_device_counts_what_the_host_waits_for() -> None:
    there = torch.arange(6.0, device=NAME).view(2, 3)
    reads: list[Callable[[], object]] = [
        lambda: there[0, 1].item(),
        lambda: bool((there > 3).any()),
        lambda: there.tolist(),
        lambda: there.cpu(),
        lambda: there.to("cpu", torch.float64),
        lambda: torch.zeros(2, 3).copy_(there),
        lambda: there.nonzero(),
        lambda: there[there > 2],
        lambda: there.masked_select(there > 2),
        lambda: there.unique(),
        lambda: torch.equal(there, there),
        lambda: there.clone().index_put_((there > 2,), torch.tensor(1.0)),
        lambda: repr(there),
    ]
    for number, read in enumerate(reads):
        with traffic() as counted:
            read()
        assert counted.reads, number
    for write in (lambda: torch.ones(2).to(NAME), lambda: there[torch.tensor([1])]):
        with traffic() as counted:
            write()
        assert counted.writes.total() == 1
        assert not counted.reads
    with traffic() as counted:
        torch.zeros_like(there).add_(there).sum().sqrt()
        torch.empty_like(there).normal_()
        torch.randn(3, device=NAME)
        torch.arange(3, device=NAME)
        torch.isfinite(there).all()
    assert counted.synchronizations == 0
    assert counted.operations > 8


# Training


def _trains(method: str, kind: str) -> Callable[[], None]:
    def run() -> None:
        model, sparsifier = trained(DEVICE, method, kind)
        reference, on_cpu = trained("cpu", method, kind)
        for name, mask in on_cpu.masks().items():
            assert torch.equal(numbers_of(sparsifier.masks()[name]), mask), f"{name}: other positions than on the CPU"
        assert same_weights(model, reference)

    return run


for _method in METHODS:
    for _kind in OPTIMIZERS if _method == "selfish" else ("SGD", "Adam", "SNTASGD"):
        SCENARIOS[f"{_method} with {_kind} trains as on the CPU"] = _trains(_method, _kind)


@scenario
def modules_of_torch_train() -> None:
    for rnn in (nn.LSTM, nn.GRU, nn.RNN):
        model = Model(lambda rnn=rnn: rnn(6, 5, num_layers=2, dropout=0.1)).to(DEVICE)
        sparsifier, optimizer = bind(model), optimizer_of(model, "SNTASGD")
        for number in range(2):
            inputs = tokens(number, DEVICE)
            with traffic() as counted:
                step(model, optimizer, inputs)
            assert counted.synchronizations == 0, counted.sites
            rewire(sparsifier, model, inputs)
            assert_on_device(sparsifier, optimizer)


@scenario
def rewiring_by_itself_waits_only_when_it_is_due() -> None:
    for method in ("selfish", "rigl"):
        model = Model().to(DEVICE)
        sparsifier, optimizer = bind(model, method, rewire_every=3), optimizer_of(model, "SGD")
        waits = []
        for number in range(6):
            inputs = tokens(number, DEVICE)
            with traffic() as counted:
                step(model, optimizer, inputs)
            waits.append(counted.synchronizations > 0)
        assert waits == [False, False, True] * 2
        assert sparsifier.rewirings_done == 2


@scenario
def gradients_of_autograd_are_masked_without_a_wait() -> None:
    model = Model().to(DEVICE)
    sparsifier = bind(model)
    inputs, parameters = tokens(0, DEVICE), list(model.parameters())
    with traffic() as counted:
        gradients = torch.autograd.grad(model(inputs).square().mean(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient)
        sparsifier.apply_masks()
    assert counted.synchronizations == 0, counted.sites
    weight = sparsifier.weights[0]
    gradient = gradients[next(n for n, each in enumerate(parameters) if each is weight.parameter)]
    outside = numbers_of(weight.mask) == 0
    assert gradient.device == DEVICE
    assert outside.any()
    assert not numbers_of(gradient)[outside].any()


# Moving, saving, releasing


@scenario
def a_model_is_moved_after_it_is_bound() -> None:
    model = Model()
    sparsifier = bind(model, "rigl")
    step(model, optimizer_of(model, "SGD"), tokens(0, "cpu"))
    with sparsifier.dense_gradients():
        backward(model, tokens(1, "cpu"))
    model.to(DEVICE)
    optimizer = optimizer_of(model, "SGD")
    inputs = tokens(2, DEVICE)
    step(model, optimizer, inputs)  # masks follow
    with traffic() as counted:
        step(model, optimizer, inputs)
    assert counted.synchronizations == 0, counted.sites
    rewire(sparsifier, model, inputs)
    assert_on_device(sparsifier, optimizer)
    model.double()
    step(model, optimizer_of(model, "SGD"), inputs)
    model.to("cpu")
    assert sparsifier.active_weights == sparsifier.target_weights
    step(model, optimizer_of(model, "SGD"), tokens(3, "cpu"))
    rewire(sparsifier, model, tokens(4, "cpu"))


@scenario
def dense_gradients_follow_a_moved_model() -> None:
    model = Model()
    sparsifier, optimizer = bind(model, "rigl"), optimizer_of(model, "SGD")
    with sparsifier.dense_gradients():
        backward(model, tokens(0, "cpu"))
        model.to(DEVICE)
        backward(model, tokens(1, DEVICE))
    optimizer.step()
    sparsifier.rewire()
    assert_on_device(sparsifier, optimizer)


@scenario
def updates_by_hand_are_counted_after_a_move() -> None:
    model = Model()
    sparsifier = bind(model, rewire_every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(16):
            if number == 9:  # the sparsifier has remembered weights of the CPU
                model.to(DEVICE)
            device = next(model.parameters()).device
            gradients = torch.autograd.grad(model(tokens(number, device)).square().mean(), list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.sub_(0.1 * gradient)
            model.zero_grad()
            sparsifier.apply_masks()
    assert sparsifier.rewirings_done > 0


@scenario
def a_run_resumes() -> None:
    for method in ("selfish", "dsr", "snfs", "rigl", "gmp"):
        for kind in ("SGD", "Adam", "SNTASGD"):
            first = Model().to(DEVICE)
            sparsifier, optimizer = bind(first, method), optimizer_of(first, kind)
            step(first, optimizer, tokens(0, DEVICE))
            rewire(sparsifier, first, tokens(1, DEVICE))
            step(first, optimizer, tokens(2, DEVICE))
            model_state = {name: tensor.cpu() for name, tensor in first.state_dict().items()}
            optimizer_state = torch.utils._pytree.tree_map(
                lambda leaf: leaf.cpu().clone() if isinstance(leaf, Tensor) else leaf, optimizer.state_dict()
            )
            file = io.BytesIO()
            torch.save([model_state, sparsifier.state_dict(), optimizer_state], file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            second = Model().to(DEVICE)
            resumed, resumed_optimizer = bind(second, method), optimizer_of(second, kind)
            second.load_state_dict(saved[0])
            resumed.load_state_dict(saved[1])
            resumed_optimizer.load_state_dict(saved[2])
            for number in (3, 4):
                for model, each, of in ((first, sparsifier, optimizer), (second, resumed, resumed_optimizer)):
                    step(model, of, tokens(number, DEVICE))
                    rewire(each, model, tokens(number, DEVICE))
                    assert_on_device(each, of)
            assert same_weights(first, second), (method, kind)


@scenario
def masks_and_sparse_models_of_the_device_bind_again() -> None:
    model, sparsifier = trained(DEVICE, "selfish", "SGD")
    masks = sparsifier.masks()
    sparsifier.detach()
    inputs, optimizer = tokens(0, DEVICE), optimizer_of(model, "SGD")
    with traffic() as counted:
        step(model, optimizer, inputs)
    assert counted.synchronizations == 0
    assert numbers_of(model.decoder.weight.detach()).all()  # trained dense again
    twin = Model().to(DEVICE)
    again = Sparsifier(twin, masks=masks, rewirings=4)
    assert all(torch.equal(numbers_of(again.masks()[name]), numbers_of(mask)) for name, mask in masks.items())
    assert Sparsifier(Model().to(DEVICE), sparsity=0.5, rewirings=4, rescale=True).active_weights


@scenario
def averages_live_on_the_device() -> None:
    for kind in ("SNTASGD", "NTASGD"):
        model = Model().to(DEVICE)
        sparsifier, optimizer = bind(model), optimizer_of(model, kind)
        inputs = tokens(0, DEVICE)
        with traffic() as counted:
            step(model, optimizer, inputs)
            with optimizer.averaged():
                model(inputs)
        assert counted.synchronizations == 0, counted.sites
        assert_on_device(sparsifier, optimizer)
        assert {each.device for state in optimizer.state.values() for each in state.values()} == {DEVICE}


@scenario
def intrinsic_structures_train_without_a_wait() -> None:
    model = StackedRNN(12, embedding=6, hidden=5, layers=2, dropout=0.2).to(DEVICE)
    structures, optimizer = IntrinsicSparseStructures(model), optimizer_of(model, "SGD")
    inputs = tokens(0, DEVICE)
    with traffic() as counted:
        output = model.encode(inputs, model.initial_state(3)).output
        (model.loss(output, inputs) + structures.penalty()).backward()
        optimizer.step()
        with structures.thresholded():
            pass
    assert counted.synchronizations == 0, counted.sites
    assert structures.live_units()


@scenario
def packing_is_refused_with_the_name_of_a_weight() -> None:
    model = Model(lambda: nn.LSTM(6, 5)).to(DEVICE)
    bind(model)
    for convert in (pack, quantize):
        with pytest.raises(ValueError, match=rf"weight\w* is on {NAME}:0, the packed engine is for the CPU"):
            convert(model)


METHODS_OF_THE_PAPER = ("selfish", "set", "dsr", "snfs", "rigl", "gmp", "static", "static-er", "dense")
"""Methods of the table in docs/limits.md. The costs of newer ones also depend on the topology."""


def rewiring_costs() -> dict[str, dict[str, list[float]]]:
    """Return by method and optimizer the reads and writes of a rewiring, for each matrix."""
    costs: dict[str, dict[str, list[float]]] = {}
    for method in METHODS_OF_THE_PAPER:
        for kind in ("SGD", "Adam", "SNTASGD"):
            per_matrix = []
            for layers in (1, 3):
                model = Model(lambda layers=layers: nn.LSTM(6, 5, num_layers=layers)).to(DEVICE)
                sparsifier, optimizer = bind(model, method), optimizer_of(model, kind)
                step(model, optimizer, tokens(0, DEVICE))
                counted = rewire(sparsifier, model, tokens(1, DEVICE))
                matrices = 2 + 2 * layers
                assert len(sparsifier.weights) == matrices
                per_matrix.append([counted.reads.total() / matrices, counted.writes.total() / matrices])
            assert per_matrix[0] == per_matrix[1], (method, kind, per_matrix)
            costs.setdefault(method, {})[kind] = per_matrix[0]
    return costs


if __name__ == "__main__":
    DEVICE = register()
    errors = {}
    chosen = sys.argv[1:] or list(SCENARIOS)
    for name in chosen:
        print(name, file=sys.stderr, flush=True)  # the last one, where the process itself ends
        try:
            SCENARIOS[name]()
        except (Exception, pytest.fail.Exception):  # the latter is no Exception
            errors[name] = traceback.format_exc(limit=-6)
    try:
        costs = rewiring_costs()
    except Exception:
        costs, errors["rewiring costs"] = {}, traceback.format_exc(limit=-6)
    json.dump({"ran": chosen, "errors": errors, "costs": costs}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # torch's thread for the backward passes of the device does not survive the end of Python
