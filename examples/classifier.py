"""Make your own ``nn.LSTM`` classifier sparse: the lines marked with + are all that is added.

The task: which of two letters comes more often in a sequence? Expected output, in about ten seconds:

    sparsity  0.0   accuracy 1.000   24,576 weights
    sparsity 0.67   accuracy 1.000    8,110 weights
    sparsity  0.9   accuracy 1.000    2,458 weights
"""

import torch
from torch import Tensor, nn

from selfish_rnn import Sparsifier, pack  # +


class Classifier(nn.Module):
    """Read letters with an LSTM and answer after the last one."""

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
    """Draw sequences of 21 letters, and which of the first two letters is more frequent."""
    letters = torch.randint(0, 8, (size, 21), generator=generator)
    return letters, ((letters == 0).sum(1) > (letters == 1).sum(1)).long()


def train(sparsity: float, epochs: int, steps: int) -> tuple[float, int]:
    """Train one classifier; return its accuracy on new sequences and its number of weights."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=sparsity, prune_rate=0.3, rewirings=epochs)  # +
    model = pack(model)  # +
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for _ in range(steps):
            letters, labels = batch(64, generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(letters), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        sparsifier.rewire()  # +
    letters, labels = batch(2000, generator)
    accuracy = (model(letters).argmax(1) == labels).float().mean().item()
    return accuracy, sparsifier.active_weights


def main(epochs: int = 10, steps: int = 100) -> None:
    """Compare the dense classifier with sparse ones."""
    for sparsity in (0.0, 0.67, 0.9):
        accuracy, weights = train(sparsity, epochs, steps)
        print(f"sparsity {sparsity:4}   accuracy {accuracy:.3f}   {weights:6,d} weights")


if __name__ == "__main__":
    main()
