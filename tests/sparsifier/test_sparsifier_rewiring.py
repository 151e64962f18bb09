"""Rewiring over a run: schedule, automatic rewirings, saving and continuing."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from sparse_cases import Classifier, assert_inside_masks, masks, same, sgd, train
from torch import Tensor, nn

from selfish_rnn import SELFISH, SNTASGD, Sparsifier


def changes_per_rewiring(rewirings: int, **settings: object) -> list[bool]:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=rewirings, **settings)
    optimizer = sgd(model)
    changes = []
    for _ in range(rewirings + 1):
        train(model, optimizer, steps=1)
        before = masks(sparsifier)
        sparsifier.rewire()
        changes.append(not same(before, masks(sparsifier)))
    return changes


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_last_of_the_announced_rewirings_changes_nothing(schedule: str) -> None:
    assert changes_per_rewiring(4, prune_rate=0.7, schedule=schedule) == [True, True, True, False, False]


def test_a_constant_schedule_goes_on() -> None:
    assert changes_per_rewiring(3, prune_rate=0.3, schedule="constant") == [True] * 4


def test_static_never_changes() -> None:
    assert changes_per_rewiring(3, method="static") == [False] * 4


def test_prune_rate_follows_the_schedule() -> None:
    sparsifier = Sparsifier(Classifier(), sparsity=0.5, prune_rate=0.8, rewirings=4)
    rates = []
    for _ in range(5):
        rates.append(sparsifier.prune_rate)
        sparsifier.rewire()
    assert rates == pytest.approx([0.8 * (1 + 2**-0.5) / 2, 0.4, 0.8 * (1 - 2**-0.5) / 2, 0, 0])
    assert sparsifier.rewirings_done == 5


def test_the_prune_rate_is_the_fraction_rewired() -> None:
    sparsifier = Sparsifier(nn.Linear(100, 40), sparsity=0.5, prune_rate=0.3, schedule="constant")
    before = sparsifier.weights[0].parameter.detach().clone()
    sparsifier.rewire()
    after = sparsifier.weights[0].parameter
    kept = (after != 0) & (after == before)
    assert int(kept.sum()) == 1400
    assert before[kept].abs().min() >= before[(before != 0) & ~kept].abs().max()
    assert sparsifier.active_weights == 2000


def test_rewire_every_rewires_after_so_many_steps_by_itself() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10, rewire_every=3)
    optimizer = sgd(model)
    changed = []
    for step in range(7):
        before = masks(sparsifier)
        train(model, optimizer, steps=1, seed=step)
        changed.append(not same(before, masks(sparsifier)))
        assert_inside_masks(sparsifier)
    assert changed == [False, False, True, False, False, True, False]
    assert (sparsifier.rewirings_done, sparsifier.steps_done) == (2, 7)


def test_without_rewire_every_steps_change_nothing() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    before = masks(sparsifier)
    train(model, sgd(model), steps=10)
    assert same(before, masks(sparsifier))


@pytest.mark.parametrize("redistribution", ["matrix", "gate", "gates-by-magnitude", "gates-by-gradient"])
@pytest.mark.parametrize("pool", ["gate", "matrix", "layer", "network"])
def test_own_methods(redistribution: str, pool: str) -> None:
    method = SELFISH.replace(name="own", allocation="er", pool=pool, redistribution=redistribution, removal="signed")
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, method=method, rewirings=5)
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer)
        sparsifier.rewire()
        assert sparsifier.active_weights == round(0.33 * sparsifier.total_weights)
        assert_inside_masks(sparsifier)


def test_rewiring_inside_averaged_is_refused() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=5)
    optimizer = SNTASGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    with optimizer.averaged(), pytest.raises(RuntimeError, match=r"outside optimizer.averaged\(\)"):
        sparsifier.rewire()
    assert sparsifier.rewirings_done == 0
    sparsifier.rewire()


def test_averages_are_sparse_and_over_the_iterates_since_growth() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, prune_rate=0.7, schedule="constant")
    optimizer = SNTASGD(model.parameters(), lr=0.1)
    optimizer.start_averaging()
    train(model, optimizer)
    old = sparsifier.weights[1].mask.clone()
    sparsifier.rewire()
    weight = sparsifier.weights[1]
    grown = (weight.mask == 1) & (old == 0)
    iterates = []
    for seed in range(3):
        train(model, optimizer, steps=1, seed=seed)
        iterates.append(weight.parameter.detach().clone())
    assert optimizer.state[weight.parameter]["age"][grown].unique().tolist() == [3]
    with optimizer.averaged():
        assert_inside_masks(sparsifier)
        torch.testing.assert_close(weight.parameter.detach()[grown], torch.stack(iterates).mean(0)[grown])


def run(
    sparsifier: Sparsifier, model: nn.Module, optimizer: torch.optim.Optimizer, rewirings: int
) -> list[list[Tensor]]:
    history = []
    for _ in range(rewirings):
        train(model, optimizer)
        sparsifier.rewire()
        history.append(masks(sparsifier))
    return history


def test_a_loaded_state_gives_the_same_future() -> None:
    model = Classifier()
    settings = {"sparsity": 0.67, "prune_rate": 0.7, "rewirings": 8}
    sparsifier, optimizer = Sparsifier(model, **settings), torch.optim.Adam(model.parameters())
    run(sparsifier, model, optimizer, 3)
    file = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sparsifier": sparsifier.state_dict()}
    torch.save(state, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    twin = Classifier(seed=9)
    twin_sparsifier, twin_optimizer = Sparsifier(twin, seed=77, **settings), torch.optim.Adam(twin.parameters())
    twin_sparsifier.load_state_dict(state["sparsifier"])
    twin.load_state_dict(state["model"])
    twin_optimizer.load_state_dict(state["optimizer"])
    assert same(masks(twin_sparsifier), masks(sparsifier))
    future, twin_future = run(sparsifier, model, optimizer, 4), run(twin_sparsifier, twin, twin_optimizer, 4)
    assert all(same(ours, theirs) for ours, theirs in zip(future, twin_future, strict=True))
    assert same(list(model.parameters()), list(twin.parameters()))
    assert twin_sparsifier.rewirings_done == 7


def test_steps_towards_the_next_rewiring_are_saved() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10, rewire_every=3)
    train(model, sgd(model), steps=2)
    state = sparsifier.state_dict()
    twin = Classifier()
    restored = Sparsifier(twin, sparsity=0.67, rewirings=10, rewire_every=3)
    restored.load_state_dict(state)
    train(twin, sgd(twin), steps=1)
    assert restored.rewirings_done == 1


def test_masks_are_saved_as_bits() -> None:
    sparsifier = Sparsifier(nn.Linear(64, 32), sparsity=0.5, method="static")
    assert sparsifier.state_dict()["topologies"]["weight.bits"].nbytes == 64 * 32 / 8


@pytest.mark.parametrize(
    ("other", "sparsity", "message"),
    [
        (nn.GRU(8, 4), 0.5, r"other weights than this model's.*bias|other weights.*weight"),
        (nn.Linear(9, 4), 0.5, r"weight.*shape"),
        (nn.Linear(4, 8), 0.5, r"weight.*shape"),
        (nn.Linear(8, 4), 0.75, "the saved topology has 8 weights, this sparsifier's settings give 16"),
    ],
    ids=["names", "size", "transposed", "density"],
)
def test_state_of_another_sparsifier_is_refused_and_nothing_changed(
    other: nn.Module, sparsity: float, message: str
) -> None:
    foreign = Sparsifier(other, sparsity=sparsity, method="static").state_dict()
    sparsifier = Sparsifier(nn.Linear(8, 4), sparsity=0.5, method="static")
    before = copy.deepcopy(sparsifier.state_dict())
    with pytest.raises(ValueError, match=message):
        sparsifier.load_state_dict(foreign)
    assert torch.equal(sparsifier.state_dict()["topologies"]["weight.bits"], before["topologies"]["weight.bits"])


def test_loading_a_state_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of a large model take a while to build."""
    sparsifier = Sparsifier(nn.Linear(8, 4), sparsity=0.5, method="static")
    state = sparsifier.state_dict()
    monkeypatch.delattr(Sparsifier, "state_dict")
    Sparsifier(nn.Linear(8, 4), sparsity=0.5, method="static", seed=9).load_state_dict(state)


def test_the_keys_asked_for_are_those_of_a_state() -> None:
    sparsifier = Sparsifier(nn.Linear(8, 4), sparsity=0.5, method="static")
    state = sparsifier.state_dict()
    for key in state:
        with pytest.raises(ValueError, match=f"it has no {key}"):
            sparsifier.load_state_dict({name: value for name, value in state.items() if name != key})


def test_a_state_that_is_not_of_a_sparsifier_is_refused() -> None:
    model = nn.Linear(8, 4)
    sparsifier = Sparsifier(model, sparsity=0.5, method="static")
    with pytest.raises(ValueError, match="not the state of a sparsifier"):
        sparsifier.load_state_dict(model.state_dict())


@pytest.mark.parametrize("method", ["set", "gmp"])
def test_the_saved_number_of_rewirings_wins_and_a_warning_names_both(method: str) -> None:
    settings = {"sparsity": 0.5, "method": method}
    first, second = Classifier(), Classifier()
    sparsifier = Sparsifier(first, rewirings=10, **settings)
    run(sparsifier, first, sgd(first), 3)
    twin = Sparsifier(second, rewirings=40, **settings)
    with pytest.warns(UserWarning, match=r"was made with rewirings=10, this one with rewirings=40: it goes on with 10"):
        twin.load_state_dict(sparsifier.state_dict())
    assert twin.rewirings == 10
    assert twin.prune_rate == sparsifier.prune_rate
    assert twin.target_weights == sparsifier.target_weights


def test_the_same_number_of_rewirings_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    state = Sparsifier(Classifier(), sparsity=0.5, rewirings=10).state_dict()
    Sparsifier(Classifier(), sparsity=0.5, rewirings=10).load_state_dict(state)
    assert not recwarn.list


def test_a_state_that_is_refused_leaves_the_number_of_rewirings() -> None:
    state = Sparsifier(Classifier(), sparsity=0.8, rewirings=10).state_dict()
    sparsifier = Sparsifier(Classifier(), sparsity=0.5, rewirings=12)
    with pytest.warns(UserWarning, match="rewirings"), pytest.raises(ValueError, match="the saved topology has"):
        sparsifier.load_state_dict(state)
    with pytest.raises(ValueError, match="saved rewirings must be a whole number of at least 1, got 'ten'"):
        sparsifier.load_state_dict({**state, "rewirings": "ten"})
    assert sparsifier.rewirings == 12


def test_a_state_says_in_which_pool_weights_are_ranked() -> None:
    state = Sparsifier(Classifier(), sparsity=0.5, rewirings=4).state_dict()
    other = Sparsifier(Classifier(), sparsity=0.5, method=SELFISH.replace(pool="matrix"), rewirings=4)
    with pytest.raises(ValueError, match="ranks weights in pool 'layer', this sparsifier's method 'selfish' in 'matri"):
        other.load_state_dict(state)


def test_a_method_that_removes_nothing_goes_with_every_pool() -> None:
    states = {
        method: Sparsifier(Classifier(), sparsity=0.5, method=method, rewirings=4).state_dict()
        for method in ("static", "selfish")
    }
    assert states["static"]["pool"] is None
    Sparsifier(Classifier(), sparsity=0.5, rewirings=4).load_state_dict(states["static"])
    Sparsifier(Classifier(), sparsity=0.5, method="static", rewirings=4).load_state_dict(states["selfish"])
