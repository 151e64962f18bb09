"""Matrices that are not made until it is known which of their weights exist."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from selfish_rnn import Sparsifier, deferred_init
from selfish_rnn.sparsifier import deferred as steps
from selfish_rnn.sparsifier.deferred import is_deferred, make_deferred, start_at

INITIALISATIONS: dict[str, Callable[[Tensor], object]] = {
    "uniform": lambda weight: nn.init.uniform_(weight, -0.3, 0.1),
    "normal": lambda weight: nn.init.normal_(weight, 1.0, 0.5),
    "kaiming": lambda weight: nn.init.kaiming_uniform_(weight, a=5**0.5),
    "scaled": lambda weight: nn.init.xavier_normal_(weight).data.mul_(3).add_(0.1, alpha=2.0),
    "constant": lambda weight: nn.init.constant_(weight, 0.7),
    "gates": lambda weight: [nn.init.normal_(gate) for gate in weight.data.chunk(2)],
    "row": lambda weight: weight.data[1].fill_(0.0),
    "clamped": lambda weight: nn.init.normal_(weight).data.clamp_(-1, 1),
    "orthogonal": nn.init.orthogonal_,
    "truncated": nn.init.trunc_normal_,
    "copied": lambda weight: weight.data.copy_(torch.arange(weight.numel()).view(weight.shape)),
}


def made_both_ways(make: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, nn.Module]:
    """A model as it is made, and deferred; the random numbers that come next are the same."""
    torch.manual_seed(seed)
    dense, after = make(), torch.get_rng_state()
    torch.manual_seed(seed)
    with deferred_init():
        deferred = make()
    assert torch.equal(after, torch.get_rng_state())
    return dense, deferred


@settings(max_examples=40)
@given(
    rows=st.integers(2, 40),
    columns=st.integers(1, 40),
    names=st.lists(st.sampled_from(sorted(INITIALISATIONS)), max_size=3),
    block=st.sampled_from([16, 32, 48, 2**16]),
    seed=st.integers(0, 100),
    data=st.data(),
)
def test_a_deferred_matrix_starts_with_what_the_dense_one_has(
    rows: int, columns: int, names: list[str], block: int, seed: int, data: st.DataObject
) -> None:
    def make() -> nn.Module:
        layer = nn.Linear(columns, rows)
        for name in names:
            INITIALISATIONS[name](layer.weight)
        return layer

    chosen = data.draw(st.lists(st.integers(0, rows * columns - 1), unique=True).map(sorted))
    positions = torch.tensor(chosen, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "BLOCK", block)
        dense, deferred = made_both_ways(make, seed)
        weight = deferred.get_parameter("weight")
        assert is_deferred(weight)
        assert torch.equal(start_at(weight, positions), dense.get_parameter("weight").detach().flatten()[positions])
    make_deferred(deferred)
    for one, other in zip(dense.parameters(), deferred.parameters(), strict=True):
        assert type(other) is nn.Parameter
        assert torch.equal(one, other)


class Odd(nn.Module):
    """What models do besides drawing their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6, padding_idx=2)
        self.own = nn.Parameter(torch.randn(20, 6) / 6**0.5 - 0.5)
        self.rnn = nn.LSTM(6, 5, num_layers=2, bidirectional=True)
        self.tied = nn.Linear(6, 10)
        self.tied.weight = self.embedding.weight
        self.convolution = nn.Conv1d(3, 4, 5)
        places = torch.zeros(10, 6)
        places[:, 0::2] = torch.arange(10.0).view(-1, 1).sin()
        self.register_buffer("places", places)
        self.plain = torch.rand(3, 3)


def test_whatever_else_a_model_does_comes_out_the_same() -> None:
    dense, deferred = made_both_ways(Odd, 4)
    assert deferred.get_parameter("tied.weight") is deferred.get_parameter("embedding.weight")
    assert torch.equal(dense.plain, deferred.plain * torch.ones(3, 3))
    make_deferred(deferred)
    assert deferred.get_parameter("tied.weight") is deferred.get_parameter("embedding.weight")
    for (name, one), other in zip(dense.state_dict().items(), deferred.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    x = torch.randn(4, 2, 6)
    assert torch.equal(dense.rnn(x)[0], deferred.rnn(x)[0])


def test_a_weight_that_is_not_made_says_so_when_it_is_used() -> None:
    with deferred_init():
        model = nn.Linear(6, 5)
    with pytest.raises(RuntimeError, match=r"shape \(5, 6\) is not made yet.*call pack\(model\) first"):
        model(torch.ones(2, 6))
    Sparsifier(model, sparsity=0.5, rewirings=2)
    with pytest.raises(RuntimeError, match=r"weight is not made yet: call pack\(model\) before"):
        torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert repr(model.weight) == "DeferredTensor(5 x 6)"


def test_binding_a_deferred_model_makes_nothing() -> None:
    with deferred_init():
        model = nn.LSTM(300_000, 300_000)  # 1.4 TB a matrix
    sparsifier = Sparsifier(model, sparsity=1 - 1e-9, rewirings=2)
    assert sparsifier.active_weights == 720
    assert sparsifier.weights[0].topology.count == 360
    assert "1200000 x 300000" in sparsifier.summary()


def test_only_matrices_in_single_precision_on_the_cpu_are_deferred() -> None:
    with deferred_init():
        assert not is_deferred(torch.empty(5))
        assert not is_deferred(torch.empty(2, 3, 4))
        assert not is_deferred(torch.empty(2, 3, dtype=torch.int64))
        assert not is_deferred(torch.empty(2, 3, dtype=torch.float64))
        assert not is_deferred(torch.empty(2, 3, device="meta"))
        assert is_deferred(torch.empty(2, 3))
    assert not is_deferred(torch.empty(2, 3))


def test_a_matrix_too_large_to_be_drawn_whole_starts_with_numbers_of_the_same_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "LARGEST_REPLAYED", 10_000)
    torch.manual_seed(1)
    with deferred_init():
        first, second = nn.Linear(1000, 400), nn.Linear(1000, 400)
    positions = torch.arange(0, 400_000, 7)
    values = [start_at(layer.weight, positions) for layer in (first, second, first)]
    assert torch.equal(values[0], values[2])
    assert not torch.equal(values[0], values[1])
    for found in values:
        assert float(found.abs().max()) < 1000**-0.5
        assert float(found.std()) == pytest.approx(1000**-0.5 / 3**0.5, rel=0.01)
        assert abs(float(found.mean())) < 1e-3


@pytest.fixture(scope="module")
def very_large() -> tuple[nn.Linear, Sparsifier]:
    """A layer of 1.2 billion positions, more than are ever drawn whole: its weights have been bound."""
    torch.manual_seed(5)
    with deferred_init():
        layer = nn.Linear(30_000, 40_000, bias=False)
        nn.init.normal_(layer.weight, 1.0, 0.5)
        layer.weight.data[:10_000].mul_(3)
        layer.weight.data[10_000:20_000].fill_(0.25)
    return layer, Sparsifier(layer, sparsity=1 - 1e-5, rewirings=2, seed=6, rescale=False)


def test_a_very_large_random_matrix_has_what_every_step_leaves(very_large: tuple[nn.Linear, Sparsifier]) -> None:
    layer, sparsifier = very_large
    assert layer.weight.numel() > steps.LARGEST_REPLAYED
    (weight,) = sparsifier.weights
    assert weight.count == 12_000
    positions, values = weight.topology.positions, weight.start()  # type: ignore[attr-defined]
    rows = positions // 30_000
    scaled, constant, plain = rows < 10_000, (rows >= 10_000) & (rows < 20_000), rows >= 20_000
    assert (values[constant] == 0.25).all()
    assert float(values[scaled].mean()) == pytest.approx(3.0, abs=0.1)
    assert float(values[scaled].std()) == pytest.approx(1.5, rel=0.05)
    assert float(values[plain].mean()) == pytest.approx(1.0, abs=0.03)
    assert float(values[plain].std()) == pytest.approx(0.5, rel=0.05)
    assert len(values[plain].unique()) > 0.99 * int(plain.sum())
    assert torch.equal(values, weight.start())  # type: ignore[attr-defined]


def test_a_very_large_random_matrix_follows_the_seed() -> None:
    def start(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(seed)
        with deferred_init():
            layers = [nn.Linear(30_000, 40_000, bias=False) for _ in range(2)]
        positions = torch.arange(0, 1_200_000_000, 1_000_003)
        return (*(start_at(layer.weight, positions) for layer in layers), torch.rand(3))

    first, again, other = start(1), start(1), start(2)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    bound = 30_000**-0.5
    assert float(first[0].abs().max()) <= bound
    assert float(first[0].std()) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_a_generator_given_to_a_very_large_matrix_decides_it() -> None:
    def start(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        with deferred_init():
            layer = nn.Linear(30_000, 40_000, bias=False)
            state = torch.get_rng_state()
            nn.init.normal_(layer.weight, generator=generator)
        assert torch.equal(state, torch.get_rng_state())
        assert not torch.equal(generator.get_state(), torch.Generator().manual_seed(seed).get_state())
        return start_at(layer.weight, torch.arange(0, 1_200_000_000, 1_000_003))

    assert torch.equal(start(1), start(1))
    assert not torch.equal(start(1), start(2))


@pytest.mark.parametrize("size", [9_999, 10_000, 10_001])
def test_the_largest_matrix_that_is_replayed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to this size a deferred matrix has the values of the dense one, and draws as many random numbers."""
    monkeypatch.setattr(steps, "LARGEST_REPLAYED", 10_000)
    torch.manual_seed(4)
    dense, after = nn.init.normal_(torch.empty(1, size)).flatten(), torch.get_rng_state()
    torch.manual_seed(4)
    with deferred_init():
        deferred = nn.init.normal_(torch.empty(1, size))
    equal = torch.equal(start_at(deferred, torch.arange(size)), dense)
    assert equal == torch.equal(after, torch.get_rng_state()) == (size <= 10_000)
