"""Draws the figures of docs/how-it-works.md: a rewiring of a small LSTM in steps, and the average of a grown weight.

    python tools/docs/rewiring_figure.py [FOLDER]

The LSTM is trained and rewired by the package itself. FOLDER is docs/figures unless it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from selfish_rnn import SELFISH, Sparsifier
from selfish_rnn.optim.iterate_average import average_
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import ActiveWeights, Topology
from selfish_rnn.topology.removal import remove

SYMBOLS, UNITS, BACK = 12, 8, 3
SPARSITY, PRUNE_RATE, EPOCHS = 0.7, 0.4, 8
CELL, GAP, TOP, LEFT, RIGHT = 16, 12, 40, 104, 84
SHADES = ("#c5cae9", "#7986cb", "#3949ab", "#1a237e")
REMOVED, GROWN, EMPTY = "#4fc3f7", "#fb8c00", "#9e9e9e"


@dataclass(frozen=True)
class Step:
    """One picture: the weights that exist, and those that are about to go or have just come."""

    title: str
    topology: Topology
    values: Tensor
    removed: Tensor | None = None
    grown: Tensor | None = None

    def counts(self) -> dict[str, int]:
        """The weights of every gate."""
        return {gate: self.topology.count_in(span) for gate, span in self.topology.gate_spans()}

    def shown(self, which: Tensor | None) -> dict[str, int]:
        """Return the number of marked weights in every gate."""
        marks = torch.zeros(self.topology.count, dtype=torch.bool) if which is None else which
        return {gate: int(marks[self.topology.within(span)].sum()) for gate, span in self.topology.gate_spans()}


def steps() -> list[Step]:
    """Train a small LSTM to repeat the symbol of three steps ago, and look at its input matrix."""
    torch.manual_seed(4)
    rnn, decoder = nn.LSTM(SYMBOLS, UNITS), nn.Linear(UNITS, SYMBOLS)
    by_matrix = SELFISH.replace(pool="matrix")  # one picture holds one matrix
    sparsifier = Sparsifier(
        rnn, sparsity=SPARSITY, method=by_matrix, prune_rate=PRUNE_RATE, rewirings=EPOCHS, rescale=True
    )
    optimizer = torch.optim.Adam([*rnn.parameters(), *decoder.parameters()], lr=0.02)
    (weight,) = (weight for weight in sparsifier.weights if weight.name == "weight_ih_l0")
    pictures = [_picture("1. The start: positions drawn at random", weight)]
    for epoch in range(EPOCHS):
        for _ in range(60):
            symbols = torch.randint(SYMBOLS, (20, 16))
            scores = decoder(rnn(nn.functional.one_hot(symbols, SYMBOLS).float())[0])
            loss = nn.functional.cross_entropy(scores[BACK:].flatten(0, 1), symbols[:-BACK].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch:
            sparsifier.rewire()
            continue
        trained = _picture("2. After an epoch of training: darker is larger", weight)
        assert by_matrix.removal is not None
        existing = ActiveWeights(trained.topology, trained.values)
        going = remove(by_matrix.removal, existing, by_matrix.pool, sparsifier.prune_rate)
        sparsifier.rewire()
        grown = _picture("4. Growth: as many in every gate, at random, from zero", weight, lambda values: values == 0)
        removal = Step(
            "3. Removal: the smallest of all four gates together", trained.topology, trained.values, removed=going
        )
        pictures += [trained, removal, grown]
    return [*pictures, _picture(f"5. After {EPOCHS} rewirings: gates have traded, the sum is the same", weight)]


def _picture(title: str, weight: SparseWeight, grown: Callable[[Tensor], Tensor] | None = None) -> Step:
    existing = weight.existing()
    values = existing.values.detach().clone()
    return Step(title, existing.topology, values, grown=None if grown is None else grown(values))


def draw(step: Step) -> str:
    """A matrix as SVG: a square for each position, the rows of a gate together, with their number of weights."""
    columns = step.topology.shape[1]
    width = LEFT + columns * CELL + RIGHT
    squares: dict[str, list[tuple[int, int]]] = {}
    labels, existing = [], dict(zip(step.topology.positions.tolist(), range(step.topology.count), strict=True))
    removed, grown = step.shown(step.removed), step.shown(step.grown)
    top = TOP
    for gate, span in step.topology.gate_spans():
        rows = range(span.start // columns, span.stop // columns)
        for row in rows:
            for column in range(columns):
                place = existing.get(row * columns + column)
                color = EMPTY if place is None else _color(step, place)
                squares.setdefault(color, []).append((LEFT + column * CELL, top + (row - rows.start) * CELL))
        middle = top + len(rows) * CELL // 2 + 5
        change = ""
        if step.removed is not None:
            change = f" \u2212{removed[gate]}"
        elif step.grown is not None:
            change = f" +{grown[gate]}"
        labels.append(f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{gate}</text>')
        labels.append(f'<text x="{width - RIGHT + 8}" y="{middle}">{step.counts()[gate]}{change}</text>')
        top += len(rows) * CELL + GAP
    labels.append(f'<text x="{width - RIGHT + 8}" y="{top + 6}" font-weight="bold">{step.topology.count}</text>')
    labels.append(f'<text x="{LEFT - 8}" y="{top + 6}" text-anchor="end" font-weight="bold">together</text>')
    paths = [_path(color, places) for color, places in sorted(squares.items())]
    title = f'<text x="0" y="16" font-weight="bold">{step.title}</text>'
    return _svg(max(width, 420), top + 16, [title, *paths, *labels])


def _color(step: Step, place: int) -> str:
    if step.removed is not None and step.removed[place]:
        return REMOVED
    if step.grown is not None and step.grown[place]:
        return GROWN
    magnitudes = step.values.abs()
    smaller = float((magnitudes < magnitudes[place]).float().mean())
    return SHADES[min(int(smaller * len(SHADES)), len(SHADES) - 1)]


def _path(color: str, places: Iterable[tuple[int, int]]) -> str:
    side = CELL - 2
    shape = "".join(f"M{x + 1} {y + 1}h{side}v{side}h-{side}z" for x, y in places)
    style = f'fill="none" stroke="{color}" stroke-opacity=".35"' if color == EMPTY else f'fill="{color}"'
    return f'<path {style} d="{shape}"/>'


def averages(grows_at: int = 40, updates: int = 100) -> dict[str, list[float]]:
    """A weight that grows while averages are taken, and what NT-ASGD and SNT-ASGD make of it."""
    weight, ages = torch.zeros(1), {"NT-ASGD": torch.zeros(1), "SNT-ASGD": torch.zeros(1)}
    means = {name: torch.zeros(1) for name in ages}
    curves: dict[str, list[float]] = {"the weight itself": [], **{name: [] for name in ages}}
    for update in range(updates):
        if update >= grows_at:
            weight += 0.12 * (1 - weight)
        for name, age in ages.items():
            if name == "NT-ASGD" or update >= grows_at:
                average_(means[name], age, weight)
            curves[name].append(means[name].item())
        curves["the weight itself"].append(weight.item())
    return curves


def draw_averages(curves: dict[str, Sequence[float]]) -> str:
    """The curves as SVG."""
    width, height, left, top = 420, 200, 30, 34
    colors = dict(zip(curves, (EMPTY, "#e53935", "#3949ab"), strict=True))
    parts = ['<text x="0" y="16" font-weight="bold">A weight that grows after 40 updates, and its averages</text>']
    for index, (name, values) in enumerate(curves.items()):
        points = " ".join(
            f"{left + at * 2.9:.1f},{top + (1 - value) * (height - 60):.1f}" for at, value in enumerate(values)
        )
        parts.append(f'<polyline fill="none" stroke="{colors[name]}" stroke-width="2.5" points="{points}"/>')
        parts.append(f'<text x="{left + 8}" y="{top + 20 + 20 * index}" style="fill:{colors[name]}">{name}</text>')
    base = top + height - 60
    parts.append(f'<path fill="none" stroke="{EMPTY}" d="M{left} {top}V{base}H{width - 90}"/>')
    parts += [
        f'<text x="{left - 6}" y="{y}" text-anchor="end">{text}</text>' for text, y in (("1", top + 5), ("0", base))
    ]
    parts += [
        f'<text x="{left + at * 2.9:.0f}" y="{base + 18}" text-anchor="middle">{at}</text>' for at in (0, 40, 100)
    ]
    return _svg(width, height + 10, parts)


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    # A gray that can be read on white and on black, for pages of either kind.
    style = "text{font:14px sans-serif;fill:#808080}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


def main(folder: Path) -> None:
    """Write all figures."""
    for number, step in enumerate(steps(), start=1):
        (folder / f"rewiring-{number}.svg").write_text(draw(step), encoding="utf-8")
    (folder / "averages.svg").write_text(draw_averages(averages()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs" / "figures")
