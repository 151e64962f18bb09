"""A bidirectional LSTM tagger over sentences of different lengths (``PackedSequence``), packed: really fewer weights.

The task: the tag of a word says whether its neighbours to the left and to the right are odd or even.
Run it with ``python examples/tagger.py``.
"""

import torch
from comparison import Outcome, outcome, show, timed
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from selfish_rnn import Sparsifier, pack

WORDS = 20


class Tagger(nn.Module):
    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS + 1, 32, padding_idx=0)
        self.rnn = nn.LSTM(32, hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, 4)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        sequences = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.rnn(sequences)[0], batch_first=True, total_length=words.shape[1])
        scores: Tensor = self.output(hidden)
        return scores


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Words (0 behind the end of a sentence), how many there are, and their tags (-100 behind the end)."""
    lengths = torch.randint(3, 25, (size,), generator=generator)
    inside = torch.arange(24) < lengths.unsqueeze(1)
    words = torch.randint(1, WORDS + 1, (size, 24), generator=generator) * inside
    odd = nn.functional.pad(words % 2, (1, 1))
    return words, lengths, (2 * odd[:, :-2] + odd[:, 2:]).masked_fill(~inside, -100)


def train(sparse: bool, epochs: int, steps: int) -> Outcome:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Tagger()
    sparsifier = Sparsifier(model, sparsity=0.9, rewirings=epochs) if sparse else None
    if sparse:
        pack(model, strict=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    with timed() as clock:
        for _ in range(epochs):
            for _ in range(steps):
                words, lengths, tags = batch(32, generator)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(words, lengths).flatten(0, 1), tags.flatten()).backward()
                optimizer.step()
            if sparsifier:
                sparsifier.rewire()
    words, lengths, tags = batch(500, generator)
    right = model(words, lengths).argmax(-1) == tags
    return outcome("sparse" if sparse else "dense", right[tags >= 0].float().mean().item(), clock, model, sparsifier)


def main(epochs: int = 8, steps: int = 30) -> list[Outcome]:
    outcomes = [train(sparse, epochs, steps) for sparse in (False, True)]
    show("accuracy", outcomes)
    return outcomes


if __name__ == "__main__":
    main()
