"""Gates that have a parameter each compete as those of one matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selfish_rnn import METHODS, GateLayout, Sparsifier, engine, register_cell
from selfish_rnn.sparsifier import selection as registry

REWIRING = [name for name, method in METHODS.items() if method.rewires or method.prunes]


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(12, 20)

    def forward(self, x: Tensor) -> Tensor:
        forget, candidate = self.both(x).split([8, 12], -1)
        return torch.cat([forget.sigmoid(), candidate.tanh()], -1)


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forget = nn.Linear(12, 8)
        self.candidate = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.forget(x).sigmoid(), self.candidate(x).tanh()], -1)


class FusedGates(nn.Linear):
    """The matrix of a fused cell, so that its gates can be registered."""


LAYOUT = GateLayout(("forget", "candidate"), (8, 12))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = registry._known_cells.copy()
    register_cell(FusedGates, lambda cell: {"weight": LAYOUT})
    register_cell(Apart, lambda cell: {("forget.weight", "candidate.weight"): LAYOUT})
    yield
    registry._known_cells.clear()
    registry._known_cells.update(before)


def pair() -> tuple[nn.Sequential, nn.Sequential]:
    """The same network twice: with one matrix for both gates, and with two."""
    torch.manual_seed(0)
    fused, apart = nn.Sequential(Fused(), nn.Linear(20, 3)), nn.Sequential(Apart(), nn.Linear(20, 3))
    cell: Any = fused[0]
    cell.both.__class__ = FusedGates
    parts: Any = apart[0]
    with torch.no_grad():
        for name in ("weight", "bias"):
            whole = getattr(cell.both, name)
            getattr(parts.forget, name).copy_(whole[:8])
            getattr(parts.candidate, name).copy_(whole[8:])
    apart[1].load_state_dict(fused[1].state_dict())
    return fused, apart


def trained(model: nn.Module, method: str, packed: bool) -> Sparsifier:
    sparsifier = Sparsifier(model, sparsity=0.6, method=method, rewirings=4, seed=1)
    if packed:
        engine.pack(model, strict=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9 if method == "snfs" else 0.0)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        for _ in range(3):
            optimizer.zero_grad()
            with sparsifier.dense_gradients():
                model(torch.randn(16, 12, generator=generator)).square().mean().backward()
            optimizer.step()
        sparsifier.rewire()
    return sparsifier


@pytest.mark.parametrize("method", REWIRING)
def test_they_are_rewired_as_a_fused_matrix_is(method: str) -> None:
    fused, apart = pair()
    whole, parts = trained(fused, method, False).masks(), trained(apart, method, False).masks()
    joined = torch.cat([parts["0.forget.weight"], parts["0.candidate.weight"]])
    assert torch.equal(joined, whole["0.both.weight"])
    assert torch.equal(parts["1.weight"], whole["1.weight"])


@pytest.mark.skipif(not engine.available(), reason="needs the packed engine")
@pytest.mark.parametrize("method", ["selfish", "rigl", "dsr", "gmp"])
def test_packed_too(method: str) -> None:
    _, masked = pair()
    _, packed = pair()
    ours, theirs = trained(packed, method, True), trained(masked, method, False)
    assert ours.active_weights == theirs.active_weights == ours.target_weights
    assert all(torch.equal(mask, theirs.masks()[name]) for name, mask in ours.masks().items())


def test_what_is_excluded_leaves_the_others_as_they_are() -> None:
    _, apart = pair()
    sparsifier = Sparsifier(apart, sparsity=0.5, rewirings=4, exclude="0.forget")
    sparsifier.rewire()
    assert sparsifier.densities().keys() == {"0.candidate.weight", "1.weight"}


def test_a_frozen_gate_freezes_its_matrix() -> None:
    _, apart = pair()
    sparsifier = Sparsifier(apart, sparsity=0.5, rewirings=4)
    before = sparsifier.masks()
    apart[0].forget.requires_grad_(False)  # type: ignore[union-attr]
    sparsifier.rewire()
    after = sparsifier.masks()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"1.weight"}


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({("forget.weight", "x.weight"): LAYOUT}, "Apart has no parameter 'x.weight', which its registration names"),
        ({("forget.weight", "candidate.weight"): GateLayout(("a", "b"), (9, 11))}, "which do not end at a gate of"),
        ({("forget.weight", "candidate.weight"): GateLayout(("a", "b", "c"), (8, 12, 2))}, "have fewer rows than"),
        ({("forget.weight", "wide.weight"): LAYOUT}, "different numbers of columns"),
    ],
)
def test_registrations_that_do_not_fit_are_refused(layouts: Any, message: str) -> None:
    register_cell(Apart, lambda cell: layouts)
    cell = Apart()
    cell.wide = nn.Linear(13, 12)
    with pytest.raises(ValueError, match=message):
        Sparsifier(cell, sparsity=0.5, rewirings=4)
