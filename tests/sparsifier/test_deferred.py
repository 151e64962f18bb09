"""Matrices that are not made until it is known which of their weights exist."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from selfish_rnn import Sparsifier, deferred_init
from selfish_rnn.sparsifier.deferred import is_deferred, make_deferred, start_at, steps

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
