"""Register a recurrent cell of your own, so that its gates compete for weights.

The cell keeps a matrix for each gate; ``register_cell`` joins them. The task: add up the two marked numbers of a
sequence. Expected output, in about ten seconds:

    sparsity 0.0   within 0.1 of the sum 1.000    8,448 weights
    sparsity 0.8   within 0.1 of the sum 0.997    1,690 weights
    {'0.forget.weight': 0.227, '0.candidate.weight': 0.173}
"""

import torch
from torch import Tensor, nn

from selfish_rnn import GateLayout, Sparsifier, pack, register_cell


class MinimalGatedUnit(nn.Module):
    """Minimal gated unit (Zhou et al. 2016): one gate both forgets and resets."""

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
    """Draw numbers with two marks, and the sums of the marked numbers."""
    numbers, marks = torch.rand(steps, size, generator=generator), torch.zeros(steps, size)
    first = torch.randint(0, steps // 2, (size,), generator=generator)
    second = torch.randint(steps // 2, steps, (size,), generator=generator)
    marks[first, torch.arange(size)] = marks[second, torch.arange(size)] = 1
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(0)


def train(sparsity: float, epochs: int, steps: int) -> Sparsifier:
    """Train one network, print how often it is within 0.1 of the sum, and return its sparsifier."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(MinimalGatedUnit(2, 64), nn.Linear(64, 1))
    sparsifier = Sparsifier(model, sparsity=sparsity, rewirings=epochs)
    model = pack(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for _ in range(steps):
            x, total = batch(64, generator)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x).squeeze(-1), total).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        sparsifier.rewire()
    x, total = batch(1000, generator)
    with torch.no_grad():
        near = ((model(x).squeeze(-1) - total).abs() < 0.1).float().mean().item()
    print(f"sparsity {sparsity:3}   within 0.1 of the sum {near:.3f}   {sparsifier.active_weights:6,d} weights")
    return sparsifier


def main(epochs: int = 10, steps: int = 40) -> None:
    """Compare the dense network with a sparse one, and print the densities of the sparse gates."""
    train(0.0, epochs, steps)
    sparsifier = train(0.8, epochs, steps)
    print({name: round(density, 3) for name, density in sparsifier.densities().items()})


if __name__ == "__main__":
    main()
