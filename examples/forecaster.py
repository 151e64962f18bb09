"""A GRU that forecasts a noisy series with Adam, dense, sparse from the start, and sparse but never rewired.

The error is that of the next value, relative to the error of saying "the same as now".
Run it with ``python examples/forecaster.py``.
"""

import torch
from comparison import Outcome, outcome, show, timed
from torch import Tensor, nn

from selfish_rnn import Sparsifier, pack


class Forecaster(nn.Module):
    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, hidden)
        self.output = nn.Linear(hidden, 1)

    def forward(self, series: Tensor) -> Tensor:
        change: Tensor = self.output(self.rnn(series)[0])
        return series + change


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sums of two waves of random phase, with noise: time x series x 1, and one step later."""
    time = torch.arange(41.0).view(-1, 1, 1)
    first, second = 6.3 * torch.rand(2, 1, size, 1, generator=generator)
    series = torch.sin(0.4 * time + first) + 0.5 * torch.sin(1.1 * time + second)
    series = series + 0.05 * torch.randn(series.shape, generator=generator)
    return series[:-1], series[1:]


def train(method: str, epochs: int, steps: int) -> Outcome:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Forecaster()
    sparsifier = None
    if method != "dense":
        sparsifier = Sparsifier(model, sparsity=0.9, method=method, rewirings=epochs)
        pack(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    with timed() as clock:
        for _ in range(epochs):
            for _ in range(steps):
                now, later = batch(32, generator)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(now), later).backward()
                optimizer.step()
            if sparsifier:
                sparsifier.rewire()
    now, later = batch(500, generator)
    with torch.no_grad():
        error = (nn.functional.mse_loss(model(now), later) / nn.functional.mse_loss(now, later)).item()
    return outcome(method, error, clock, model, sparsifier)


def main(epochs: int = 10, steps: int = 30) -> list[Outcome]:
    outcomes = [train(method, epochs, steps) for method in ("dense", "selfish", "static")]
    show("error", outcomes)
    return outcomes


if __name__ == "__main__":
    main()
