"""A recurrent cell of one's own, with a matrix for each gate, whose gates compete for weights as in a fused matrix.

The task: add up two marked numbers of a sequence. Run it with ``python examples/own_cell.py``.
"""

import torch
from comparison import Outcome, outcome, show, timed
from torch import Tensor, nn

from selfish_rnn import GateLayout, Sparsifier, pack, register_cell


class MinimalGatedUnit(nn.Module):
    """Zhou et al. 2016: one gate that both forgets and resets."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.forget = nn.Linear(inputs + hidden, hidden)
        self.candidate = nn.Linear(inputs + hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], self.hidden)
        for step in x:
            forget = self.forget(torch.cat([step, h], -1)).sigmoid()
            candidate = self.candidate(torch.cat([step, forget * h], -1)).tanh()
            h = h + forget * (candidate - h)
        return h


register_cell(
    MinimalGatedUnit,
    lambda cell: {
        ("forget.weight", "candidate.weight"): GateLayout.even(("forget", "candidate"), 2 * cell.hidden),
    },
)


def batch(size: int, generator: torch.Generator, steps: int = 12) -> tuple[Tensor, Tensor]:
    numbers, marks = torch.rand(steps, size, generator=generator), torch.zeros(steps, size)
    first = torch.randint(0, steps // 2, (size,), generator=generator)
    second = torch.randint(steps // 2, steps, (size,), generator=generator)
    marks[first, torch.arange(size)] = marks[second, torch.arange(size)] = 1
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(0)


def train(sparse: bool, epochs: int, steps: int) -> Outcome:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(MinimalGatedUnit(2, 64), nn.Linear(64, 1))
    sparsifier = Sparsifier(model, sparsity=0.8, rewirings=epochs) if sparse else None
    if sparse:
        pack(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with timed() as clock:
        for _ in range(epochs):
            for _ in range(steps):
                x, total = batch(64, generator)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x).squeeze(-1), total).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if sparsifier:
                sparsifier.rewire()
    x, total = batch(1000, generator)
    with torch.no_grad():
        near = ((model(x).squeeze(-1) - total).abs() < 0.1).float().mean().item()
    if sparsifier:
        print({name: round(density, 3) for name, density in sparsifier.densities().items()})
    return outcome("sparse" if sparse else "dense", near, clock, model, sparsifier)


def main(epochs: int = 10, steps: int = 40) -> list[Outcome]:
    outcomes = [train(sparse, epochs, steps) for sparse in (False, True)]
    show("within 0.1", outcomes)
    return outcomes


if __name__ == "__main__":
    main()
