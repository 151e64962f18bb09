"""How the two averaging optimizers behave as torch optimizers."""

from __future__ import annotations

import copy
import io
import json

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim.lr_scheduler import StepLR

from selfish_rnn.optim import NTASGD, SNTASGD, AveragedSGD
from selfish_rnn.sparsifier.optimizer_state import reset_state

BOTH = pytest.mark.parametrize("kind", [SNTASGD, NTASGD])


def model_and_optimizer(
    kind: type[AveragedSGD], averaging: bool = True, **options: float
) -> tuple[nn.Linear, AveragedSGD]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = kind(model.parameters(), **{"lr": 0.1, **options})
    if averaging:
        optimizer.start_averaging()
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> list[list[Tensor]]:
    """Steps on seeded noise; the iterates after each."""
    generator = torch.Generator().manual_seed(seed)
    iterates = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        iterates.append([parameter.detach().clone() for parameter in model.parameters()])
    return iterates


def copies(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@BOTH
def test_raw_weights_are_those_of_plain_sgd(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind, weight_decay=0.01)
    iterates = train(model, optimizer, 10)
    plain, _ = model_and_optimizer(kind)
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1, weight_decay=0.01), 10)
    for got, want in zip(iterates[-1], expected[-1], strict=True):
        torch.testing.assert_close(got, want)


@BOTH
def test_average_is_the_mean_of_the_iterates_from_the_trigger_on(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind, averaging=False)
    train(model, optimizer, 3)
    optimizer.start_averaging()
    iterates = train(model, optimizer, 7, seed=1)
    with optimizer.averaged():
        for parameter, *values in zip(model.parameters(), *iterates, strict=True):
            torch.testing.assert_close(parameter.detach(), torch.stack(values).mean(0))


def test_ntasgd_is_torch_asgd_but_for_the_first_iterate() -> None:
    """torch's ASGD (t0 = 0, lambd = 0) leaves the first iterate out of the mean; the formula counts it."""
    model, optimizer = model_and_optimizer(NTASGD)
    iterates = train(model, optimizer, 6)
    other, _ = model_and_optimizer(NTASGD)
    asgd = torch.optim.ASGD(other.parameters(), lr=0.1, lambd=0, alpha=0, t0=0)
    train(other, asgd, 6)
    ours = optimizer.state[model.weight]["average"]
    torchs = asgd.state[other.weight]["ax"]
    torch.testing.assert_close((ours * 6 - iterates[0][0]) / 5, torchs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("kind", "expected"), [(SNTASGD, 2.0), (NTASGD, 0.5)])
def test_a_grown_weight_is_dragged_to_zero_only_by_the_common_start(kind: type[AveragedSGD], expected: float) -> None:
    """Six steps at zero, then the weight grows and stays at 2 for two: mean 2 since growth, 0.5 since the start."""
    weight = nn.Parameter(torch.zeros(1, 1))
    optimizer = kind([weight], lr=1.0)
    optimizer.start_averaging()
    for _ in range(6):
        optimizer.step()
    reset_state(optimizer, weight, torch.tensor([0]))
    for gradient in (-2.0, 0.0):
        weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
    assert weight.item() == 2.0
    assert optimizer.state[weight]["average"].item() == pytest.approx(expected)


@BOTH
def test_memory(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind, averaging=False)
    train(model, optimizer, 2)
    assert not optimizer.state
    optimizer.start_averaging()
    train(model, optimizer, 2)
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert set(state) == {"average", "age"}
        assert state["average"].dtype == parameter.dtype
        assert state["age"].dtype == torch.int32
        assert state["age"].shape == (parameter.shape if kind is SNTASGD else ())


@BOTH
def test_averaged_swaps_in_and_out_bit_exactly(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind)
    train(model, optimizer, 5)
    raw = copies(model)
    averages = [optimizer.state[parameter]["average"].clone() for parameter in model.parameters()]
    for _ in range(2):
        with optimizer.averaged():
            assert optimizer.averages_swapped_in
            assert same(copies(model), averages)
            assert not same(copies(model), raw)
        assert not optimizer.averages_swapped_in
        assert same(copies(model), raw)
    assert same([optimizer.state[parameter]["average"] for parameter in model.parameters()], averages)


@BOTH
def test_raw_weights_come_back_when_the_body_raises(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind)
    train(model, optimizer, 5)
    raw = copies(model)
    with pytest.raises(ZeroDivisionError), optimizer.averaged():
        raise ZeroDivisionError
    assert same(copies(model), raw)
    train(model, optimizer, 1)  # and training goes on


@BOTH
def test_averaged_changes_nothing_before_the_trigger(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind, averaging=False)
    train(model, optimizer, 3)
    raw = copies(model)
    with optimizer.averaged():
        assert same(copies(model), raw)
    assert same(copies(model), raw)


@pytest.mark.parametrize("call", ["step", "state_dict", "restart", "averaged", "load_state_dict"])
@pytest.mark.parametrize("averaging", [True, False])
def test_calls_that_need_the_raw_weights_are_refused_inside_averaged(call: str, averaging: bool) -> None:
    model, optimizer = model_and_optimizer(SNTASGD, averaging)
    train(model, optimizer, 2)
    saved = optimizer.state_dict()
    with optimizer.averaged(), pytest.raises(RuntimeError, match=rf"{call}\(\) needs the raw weights"):  # noqa: PT012
        if call == "averaged":
            with optimizer.averaged():
                pass
        else:
            getattr(optimizer, call)(*([saved] if call == "load_state_dict" else []))


@BOTH
def test_restart_averages_from_the_raw_weights_on(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind)
    train(model, optimizer, 5)
    raw = copies(model)
    optimizer.restart()
    assert optimizer.averaging
    with optimizer.averaged():
        assert same(copies(model), raw)
    iterates = train(model, optimizer, 2, seed=1)
    torch.testing.assert_close(optimizer.state[model.weight]["average"], (iterates[0][0] + iterates[1][0]) / 2)


def test_restart_before_the_trigger_has_no_effect() -> None:
    _, optimizer = model_and_optimizer(SNTASGD, averaging=False)
    optimizer.restart()
    assert not optimizer.averaging


@BOTH
def test_observe_starts_averaging_with_the_next_step(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind, averaging=False, nonmono=1)
    assert [optimizer.observe(loss) for loss in (3.0, 2.0, 4.0)] == [False, False, True]
    assert optimizer.averaging
    assert not optimizer.state
    train(model, optimizer, 1)
    assert torch.equal(optimizer.state[model.weight]["average"], model.weight)


@BOTH
@pytest.mark.parametrize("through_file", [True, False])
def test_saved_and_loaded_in_mid_run_continues_bit_identically(kind: type[AveragedSGD], through_file: bool) -> None:
    model, optimizer = model_and_optimizer(kind, averaging=False, nonmono=2)
    for loss in (3.0, 4.0):
        optimizer.observe(loss)
    train(model, optimizer, 3)
    optimizer.start_averaging()
    train(model, optimizer, 3)
    optimizer.state[model.weight]["age"].view(-1)[0] = 2**24 + 1  # a whole number float32 cannot hold
    state = {"model": copy.deepcopy(model.state_dict()), "optimizer": copy.deepcopy(optimizer.state_dict())}
    if through_file:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    other, restored = model_and_optimizer(kind, averaging=False, lr=99, nonmono=2)
    other.load_state_dict(state["model"])
    restored.load_state_dict(state["optimizer"])
    assert restored.averaging
    assert restored.trigger.losses == [3.0, 4.0]
    for one, two in ((optimizer, model), (restored, other)):
        train(two, one, 4, seed=5)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key in ("average", "age"):
            assert torch.equal(optimizer.state[ours][key], restored.state[theirs][key])
            assert optimizer.state[ours][key].dtype == restored.state[theirs][key].dtype


def test_a_loaded_state_shares_nothing_with_the_saved_one() -> None:
    model, optimizer = model_and_optimizer(SNTASGD)
    train(model, optimizer, 2)
    other, restored = model_and_optimizer(SNTASGD)
    restored.load_state_dict(optimizer.state_dict())
    train(other, restored, 3)
    assert optimizer.state[model.weight]["age"].unique().tolist() == [2]


@BOTH
def test_closure_is_evaluated_once_with_gradients(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind)
    calls = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).pow(2).sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    before = copies(model)
    loss = optimizer.step(closure)
    assert [loss.item()] == calls
    assert not same(copies(model), before)
    assert optimizer.step() is None


@BOTH
def test_groups_and_schedulers(kind: type[AveragedSGD]) -> None:
    model, _ = model_and_optimizer(kind)
    groups = [{"params": [model.weight], "weight_decay": 0.5}, {"params": [model.bias], "lr": 1.0}]
    optimizer = kind(groups, lr=0.1)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    for lrs in ([0.1, 1.0], [0.05, 0.5]):
        before = copies(model)
        model.weight.grad, model.bias.grad = torch.ones(3, 4), torch.ones(3)
        optimizer.step()
        scheduler.step()
        torch.testing.assert_close(model.weight.detach(), before[0] * (1 - 0.5 * lrs[0]) - lrs[0])
        torch.testing.assert_close(model.bias.detach(), before[1] - lrs[1])


def test_a_parameter_without_gradient_stays_and_is_its_own_average() -> None:
    """A frozen layer has to be there when the averages are swapped in."""
    model, optimizer = model_and_optimizer(SNTASGD)
    before = copies(model)
    optimizer.step()
    with optimizer.averaged():
        assert same(copies(model), before)


@BOTH
def test_copies_go_on_by_themselves(kind: type[AveragedSGD]) -> None:
    """An optimizer can be copied or pickled like torch's own, with its trigger."""
    model, optimizer = model_and_optimizer(kind, nonmono=3)
    train(model, optimizer, 2)
    twin, optimizer_twin = copy.deepcopy((model, optimizer))
    assert optimizer_twin.trigger.interval == 3
    train(model, optimizer, 2)
    train(twin, optimizer_twin, 2)
    assert same(copies(model), copies(twin))
    assert torch.equal(optimizer.state[model.weight]["average"], optimizer_twin.state[twin.weight]["average"])


@BOTH
def test_state_of_another_optimizer_is_refused(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind)
    with pytest.raises(ValueError, match="not the state of an averaging optimizer"):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())


@BOTH
def test_averages_of_whole_matrices_do_not_fit_packed_weights(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_and_optimizer(kind)
    train(model, optimizer, 2)
    packed = [nn.Parameter(torch.zeros(3)) if weight.ndim == 2 else weight for weight in model.parameters()]
    with pytest.raises(ValueError, match=r"saved average of parameter 0 is of shape .* before pack\(model\)"):
        kind(packed, lr=1.0).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"lr": 0}, "lr must"), ({"weight_decay": -1}, "weight_decay must not"), ({"nonmono": -1}, "nonmono is")],
)
def test_bad_settings(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SNTASGD([nn.Parameter(torch.ones(1))], **{"lr": 1.0, **options})


@BOTH
@pytest.mark.parametrize("averaging", [True, False])
def test_torch_s_distributed_checkpoints_save_and_load_it(kind: type[AveragedSGD], averaging: bool) -> None:
    model, optimizer = model_and_optimizer(kind, averaging=averaging)
    optimizer.observe(3.0)
    train(model, optimizer, 2)
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    other, restored = model_and_optimizer(kind, averaging=False)
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, restored, saved)
    assert restored.averaging == averaging
    assert restored.trigger.losses == [3.0]
    for one, two in ((optimizer, model), (restored, other)):
        train(two, one, 2, seed=5)
    with optimizer.averaged(), restored.averaged():
        assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_loss_that_is_a_tensor_is_kept_as_a_number() -> None:
    _, optimizer = model_and_optimizer(SNTASGD, averaging=False, nonmono=0)
    assert [optimizer.observe(torch.tensor(loss)) for loss in (2.0, 3.0)] == [False, True]  # type: ignore[arg-type]
    assert json.dumps(optimizer.state_dict()["param_groups"][0]["trigger"]) == '{"fired": true, "losses": [2.0, 3.0]}'


@BOTH
def test_hooks_of_users_see_the_trigger_in_the_state(kind: type[AveragedSGD]) -> None:
    _, optimizer = model_and_optimizer(kind, averaging=False)
    seen = []
    optimizer.register_state_dict_post_hook(lambda _, state: seen.append(copy.deepcopy(state["param_groups"])))
    optimizer.observe(3.0)
    assert seen == [optimizer.state_dict()["param_groups"]]
    assert seen[0][0]["trigger"] == {"fired": False, "losses": [3.0]}
    assert all("trigger" not in group for group in optimizer.param_groups)


@BOTH
def test_repr_shows_when_averaging_starts(kind: type[AveragedSGD]) -> None:
    _, optimizer = model_and_optimizer(kind, averaging=False, nonmono=7)
    assert repr(optimizer).endswith("weight_decay: 0.0\nnonmono: 7, averaging: False\n)")
