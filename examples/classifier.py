"""Your own ``nn.LSTM`` classifier with Adam, made sparse: the lines marked with + are all that is added.

The task: which of two letters comes more often in a sequence? Run it with ``python examples/classifier.py``.
"""

import torch
from comparison import Outcome, outcome, show, timed
from torch import Tensor, nn

from selfish_rnn import Sparsifier, pack  # +


class Classifier(nn.Module):
    def __init__(self, letters: int = 8, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, 32)
        self.rnn = nn.LSTM(32, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, 2)

    def forward(self, letters: Tensor) -> Tensor:
        output, _ = self.rnn(self.embedding(letters))
        scores: Tensor = self.decoder(output[:, -1])
        return scores


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    letters = torch.randint(0, 8, (size, 21), generator=generator)
    return letters, ((letters == 0).sum(1) > (letters == 1).sum(1)).long()


def train(sparse: bool, epochs: int, steps: int) -> Outcome:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Classifier()
    sparsifier = None
    if sparse:
        sparsifier = Sparsifier(model, sparsity=0.9, prune_rate=0.3, rewirings=epochs)  # +
        pack(model)  # +
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with timed() as clock:
        for _ in range(epochs):
            for _ in range(steps):
                letters, labels = batch(64, generator)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(letters), labels).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if sparsifier:
                sparsifier.rewire()  # +
    letters, labels = batch(2000, generator)
    accuracy = (model(letters).argmax(1) == labels).float().mean().item()
    return outcome("sparse" if sparse else "dense", accuracy, clock, model, sparsifier)


def main(epochs: int = 10, steps: int = 100) -> list[Outcome]:
    outcomes = [train(sparse, epochs, steps) for sparse in (False, True)]
    show("accuracy", outcomes)
    return outcomes


if __name__ == "__main__":
    main()
