"""Packed weights among other people's tools: averages by parameters(), weight decay groups, copies and files."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_cases import needs_kernels, seeded, seeds
from torch import Tensor, nn

from selfish_rnn import Sparsifier, blend_, is_matrix, quantize
from selfish_rnn.engine import PackedWeight, pack

pytestmark = needs_kernels

MIXED = r"of the values of two packed weights whose topologies differ \(\d+ x \d+\).*selfish_rnn.blend_"


class Mlp(nn.Module):
    """With a tied matrix, one that stays dense, and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.hidden = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.output = nn.Linear(6, 12)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.norm(self.hidden(self.embedding(tokens)).tanh()))


def trained(model: nn.Module, seed: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.randint(12, (9,), generator=seeded(seed))
    model(tokens).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def bound(seed: int, packs: bool, exclude: tuple[str, ...] = ()) -> tuple[Mlp, Sparsifier]:
    torch.manual_seed(seed)
    model = Mlp()
    sparsifier = Sparsifier(model, sparsity=0.6, rewirings=9, method="selfish", exclude=exclude)
    return (pack(model) if packs else model), sparsifier


def pair(moved: bool) -> tuple[nn.Module, nn.Module, list[Tensor]]:
    """A packed model that was perhaps rewired, a copy, and a list of copies of its parameters."""
    model, sparsifier = bound(0, packs=True)
    average, shadows = copy.deepcopy(model), [parameter.clone().detach() for parameter in model.parameters()]
    if moved:
        sparsifier.rewire()
    return model, average, shadows


def whole(weight: Any) -> Tensor:
    """A copy of a matrix, masked or packed, as a dense one."""
    dense: Tensor = weight.to_dense().detach().clone()
    return dense


# Averages by parameters() are refused


def _polyak(average: Any, weight: Any, shadow: Tensor) -> None:
    average.data.mul_(0.9)
    torch.add(average.data, weight.data, alpha=0.1, out=average.data)


def _assigned(average: Any, weight: Any, shadow: Tensor) -> None:
    average.data = 0.9 * average.data + 0.1 * weight.data


BLENDS: dict[str, Callable[[Any, Any, Tensor], object]] = {
    "lerp_": lambda average, weight, shadow: average.lerp_(weight, 0.1),
    "lerp_ of data": lambda average, weight, shadow: average.data.lerp_(weight.data, 0.1),
    "add_": lambda average, weight, shadow: average.mul_(0.9).add_(weight, alpha=0.1),
    "add_ of a product": lambda average, weight, shadow: average.mul_(0.9).add_(0.1 * weight),
    "copy_ of a sum": lambda average, weight, shadow: average.copy_(average * 0.9 + weight * 0.1),
    "copy_ of data": lambda average, weight, shadow: average.data.copy_(0.1 * weight.data + 0.9 * average.data),
    "detached": lambda average, weight, shadow: average.detach().add_(weight.detach() - average.detach(), alpha=0.1),
    "foreach": lambda average, weight, shadow: torch._foreach_lerp_([average.data], [weight.data], 0.1),
    "a list of copies": lambda average, weight, shadow: shadow.sub_(0.1 * (shadow - weight)),
    "a copied list of copies": lambda average, weight, shadow: copy.deepcopy(shadow).lerp_(weight, 0.1),
    "target network": _polyak,
    "data is set": _assigned,
    "data is set to another": lambda average, weight, shadow: setattr(average, "data", weight.data),
    "hard update": lambda average, weight, shadow: average.data.copy_(weight.data),
    "+=": lambda average, weight, shadow: average.__iadd__(weight),
}


@pytest.mark.parametrize("blend", BLENDS)
def test_blends_of_two_topologies_are_refused_and_of_one_allowed(blend: str) -> None:
    for moved in (False, True):
        model, average, shadows = pair(moved)

        def run(model: nn.Module = model, average: nn.Module = average, shadows: list[Tensor] = shadows) -> None:
            with torch.no_grad():
                for mean, weight, shadow in zip(average.parameters(), model.parameters(), shadows, strict=True):
                    BLENDS[blend](mean, weight, shadow)

        if moved:
            with pytest.raises(RuntimeError, match=MIXED):
                run()
        else:
            run()


def test_loading_a_state_dict_is_the_way_to_copy() -> None:
    model, average, _ = pair(moved=True)
    for state in (
        model.state_dict(),
        model.state_dict(keep_vars=True),
        {name: tensor.data.clone() for name, tensor in model.state_dict(keep_vars=True).items()},
    ):
        average.load_state_dict(state)
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                assert torch.equal(mean.lerp_(weight, 0.5), weight)
        trained(average, 1)


def test_equal_topologies_made_apart_are_blended() -> None:
    weights = [PackedWeight.from_dense(torch.ones(5, 3).tril_()) for _ in range(2)]
    with torch.no_grad():
        weights[0].values.lerp_(weights[1].values, 0.5)
        weights[1].values.data.mul_(0.5).add_(weights[0].values.data)
    assert weights[1].values.sum() == 1.5 * weights[1].count


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.AdamW(parameters, foreach=True),
        lambda parameters: torch.optim.Adam(parameters, fused=True, amsgrad=True),
        lambda parameters: torch.optim.ASGD(parameters),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda parameters: torch.optim.Rprop(parameters),
        lambda parameters: torch.optim.NAdam(parameters),
    ],
)
def test_optimizers_go_on_across_rewirings(optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    model, sparsifier = bound(0, packs=True)
    steps = optimizer(model.parameters())
    for step in range(6):
        model(torch.randint(12, (9,), generator=seeded(step))).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()
        if step % 2:
            sparsifier.rewire()
    assert sparsifier.active_weights == sparsifier.target_weights


def test_an_optimizer_whose_state_is_made_of_data_goes_on_across_rewirings() -> None:
    """Momentum that begins as a copy of ``p.data`` has the order of the topology; a rewiring gives it the new one."""

    class Momentum(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                if "buffer" not in self.state[parameter]:
                    self.state[parameter]["buffer"] = parameter.data.clone()
                buffer = self.state[parameter]["buffer"].mul_(0.9).add_(parameter.grad.data)
                parameter.data.add_(buffer, alpha=-0.01)

    model, sparsifier = bound(0, packs=True)
    optimizer = Momentum(model.parameters())
    for step in range(4):
        model(torch.randint(12, (9,), generator=seeded(step))).square().mean().backward()
        optimizer.step()
        sparsifier.rewire()


# Copies, files, tools of torch


def test_values_stay_marked_through_copies_and_conversions() -> None:
    model, _ = bound(0, packs=True)
    order = model.hidden.weight.values.order
    again = copy.deepcopy(model)
    again.load_state_dict(model.state_dict(), assign=True)
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model).double().float(),
        copy.deepcopy(model).share_memory(),
        again,
    ):
        values = other.hidden.weight.values
        assert isinstance(values, nn.Parameter)
        assert (values.is_matrix, values.matrix_shape, values.order) == (True, (6, 6), order)
        assert other.output.weight is other.embedding.weight
        with torch.no_grad():
            values.lerp_(model.hidden.weight.values, 0.5)
    assert copy.deepcopy(model).to("meta").hidden.weight.values.is_matrix


def test_files_have_plain_tensors() -> None:
    model, _ = bound(0, packs=True)
    values = model.hidden.weight.values
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "parameter": values, "data": values.data, "copy": values.clone()}, file)
    file.seek(0)
    opened = torch.load(file, weights_only=True)
    assert all(type(tensor) is Tensor for tensor in opened["model"].values())
    assert [type(opened[name]) for name in ("parameter", "data", "copy")] == [nn.Parameter, Tensor, Tensor]
    assert repr(values.data).startswith("tensor(")


def test_the_graph_goes_through_copies() -> None:
    values = PackedWeight.from_dense(torch.ones(5, 3).tril_()).values
    (values.clone() * values).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, torch.full((12,), 2.0))


@pytest.mark.slow
def test_values_are_compiled_and_exported_and_called_functionally() -> None:
    model, _ = bound(0, packs=True)
    tokens = torch.randint(12, (9,), generator=seeded(0))
    model.eval()
    wanted = model(tokens)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens), wanted)
    torch.testing.assert_close(torch.export.export(model, (tokens,)).module()(tokens), wanted)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(torch.func.functional_call(model, parameters, (tokens,)), wanted)
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens), wanted)


# blend_


@given(
    seed=seeds,
    decay=st.sampled_from([0.0, 0.25, 0.9, 1.0]),
    packs=st.booleans(),
    moves=st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_blending_is_that_of_dense_matrices_within_the_topology(
    seed: int, decay: float, packs: bool, moves: list[bool]
) -> None:
    model, sparsifier = bound(seed % 1000, packs, exclude=("hidden.weight",))
    average = copy.deepcopy(model)
    matrix = whole(model.embedding.weight)
    dense = model.hidden.weight.detach().clone()
    for step, moved in enumerate(moves):
        trained(model, seed + step)
        if moved:
            sparsifier.rewire()
            trained(model, seed - step)
        blend_(average, model, decay)
        topology = sparsifier.masks()["embedding.weight"]
        matrix = (decay * matrix + (1 - decay) * whole(model.embedding.weight)) * topology
        dense = decay * dense + (1 - decay) * model.hidden.weight.detach()
        torch.testing.assert_close(whole(average.embedding.weight), matrix)
        torch.testing.assert_close(average.hidden.weight.detach(), dense)
        assert average.output.weight is average.embedding.weight
        for buffer, source in zip(average.buffers(), model.buffers(), strict=True):
            assert torch.equal(buffer, source)
    tokens = torch.randint(12, (9,), generator=seeded(seed))
    assert torch.isfinite(average.eval()(tokens)).all()
    if decay == 0:
        assert torch.equal(average(tokens), model.eval()(tokens))
    average.load_state_dict(copy.deepcopy(average.state_dict()))


def test_a_dense_model_is_blended_too() -> None:
    model, average = nn.Linear(3, 2), nn.Linear(3, 2)
    wanted = 0.75 * average.weight.detach() + 0.25 * model.weight.detach()
    blend_(average, model, 0.75)
    torch.testing.assert_close(average.weight.detach(), wanted)


def test_models_that_cannot_be_blended_are_refused_unchanged() -> None:
    model, _ = bound(0, packs=True)
    masked, _ = bound(0, packs=False)
    before = copy.deepcopy(masked.state_dict())
    with pytest.raises(ValueError, match=r"differ in .*weight.*copy.deepcopy\(model\), after the model is packed"):
        blend_(masked, model, 0.5)
    assert all(torch.equal(before[name], tensor) for name, tensor in masked.state_dict().items())
    with pytest.raises(ValueError, match="differ in weight, bias"):
        blend_(nn.Linear(3, 2), nn.Linear(3, 4), 0.5)
    with pytest.raises(ValueError, match=r"decay must be from 0 to 1, got 1\.5"):
        blend_(model, model, 1.5)
    with pytest.raises(ValueError, match="int8 models cannot be blended"):
        blend_(quantize(copy.deepcopy(model)), model, 0.5)
    with pytest.raises(ValueError, match="cannot follow one of"):
        model.hidden.weight.follow(model.output.weight, model.output.weight.values)


# Optimizers that sort parameters by their dimensions


def groups(model: nn.Module, sort: Callable[[Tensor], bool], decay: float = 0.1) -> list[dict[str, Any]]:
    return [
        {"params": [parameter for parameter in model.parameters() if sort(parameter)], "weight_decay": decay},
        {"params": [parameter for parameter in model.parameters() if not sort(parameter)], "weight_decay": 0.0},
    ]


def first_step(*optimizers: torch.optim.Optimizer) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.step()
    return [str(warning.message) for warning in caught]


def test_matrices_are_told_from_biases_packed_or_not() -> None:
    sorted_names = [
        {
            name.removesuffix(".values")
            for name, parameter in bound(0, packs)[0].named_parameters()
            if is_matrix(parameter)
        }
        for packs in (False, True)
    ]
    assert sorted_names[0] == sorted_names[1] == {"embedding.weight", "hidden.weight"}
    packed, masked = (bound(0, packs)[0] for packs in (True, False))
    sizes = [[len(group["params"]) for group in groups(model, is_matrix)] for model in (packed, masked)]
    assert sizes[0] == sizes[1] == [2, 4]


def test_groups_that_decay_no_packed_weight_are_warned_about_once() -> None:
    model, _ = bound(0, packs=True)
    by_dimensions = groups(model, lambda parameter: parameter.ndim >= 2)
    assert not by_dimensions[0]["params"]
    (message,) = first_step(torch.optim.AdamW(by_dimensions))
    assert "no weight of the 2 packed matrices" in message
    assert "selfish_rnn.is_matrix(parameter)" in message
    for unproblematic in (groups(model, is_matrix), groups(model, is_matrix, decay=0.0), model.parameters()):
        assert not first_step(torch.optim.AdamW(unproblematic))  # type: ignore[arg-type]
    assert not first_step(torch.optim.AdamW(groups(bound(0, packs=False)[0], lambda parameter: parameter.ndim >= 2)))


class Muon(torch.optim.SGD):
    """Of some package."""


def test_packed_weights_that_muon_does_not_get_are_warned_about() -> None:
    gc.collect()  # the optimizers of other tests, which the warning would name too
    model, _ = bound(0, packs=True)
    dense = nn.Linear(3, 3)
    muon, rest = Muon([dense.weight], lr=0.1), torch.optim.AdamW(model.parameters())
    (message,) = first_step(rest, muon)
    assert "they are trained by AdamW, as biases are" in message
    del muon
    halves = [{"params": [dense.weight], "use_muon": True}, {"params": list(model.parameters()), "use_muon": False}]
    (message,) = first_step(torch.optim.SGD(halves, lr=0.1))
    assert "keep the model masked" in message
    del rest
    assert not first_step(Muon([dense.weight], lr=0.1), torch.optim.AdamW([dense.bias]))
