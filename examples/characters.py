"""Character by character: an LSTM learns English from Python's own documentation, and writes some.

Bits per character of text it has not seen; SNT-ASGD averages every weight since it grew.
Run it with ``python examples/characters.py``.
"""

from pydoc_data.topics import topics

import torch
from comparison import Outcome, outcome, show, timed
from torch import Tensor, nn

from selfish_rnn import SNTASGD, Sparsifier, pack

TEXT = " ".join(" ".join(topics[name].split()) for name in ("compound", "naming", "objects", "integers"))
LETTERS = sorted(set(TEXT))
BATCH, WINDOW = 20, 50


class Writer(nn.Module):
    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), 64)
        self.rnn = nn.LSTM(64, hidden)
        self.output = nn.Linear(hidden, len(LETTERS))

    def forward(self, letters: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple]:
        output, state = self.rnn(self.embedding(letters), state)
        return self.output(output), state


def loss_of(model: Writer, text: Tensor, state: tuple | None = None) -> tuple[Tensor, tuple]:
    scores, state = model(text[:-1], state)
    return nn.functional.cross_entropy(scores.flatten(0, 1), text[1:].flatten()), state


def write(model: Writer, start: str = "The ", length: int = 80) -> str:
    letters, state = torch.tensor([LETTERS.index(letter) for letter in start]).view(-1, 1), None
    text = start
    for _ in range(length):
        scores, state = model(letters, state)
        letters = torch.multinomial((scores[-1] / 0.7).softmax(-1), 1)
        text += LETTERS[int(letters)]
    return text


def train(sparse: bool, epochs: int, characters: int) -> Outcome:
    torch.manual_seed(0)
    ids = torch.tensor([LETTERS.index(letter) for letter in TEXT[: characters + 5000]])
    rows = ids[:characters].view(BATCH, -1).t().contiguous()  # time x batch
    unseen = ids[characters:].view(-1, 1)
    model = Writer()
    sparsifier = Sparsifier(model, sparsity=0.8, rewirings=epochs) if sparse else None
    if sparse:
        pack(model)
    optimizer = SNTASGD(model.parameters(), lr=20.0, nonmono=1)
    with timed() as clock:
        for _ in range(epochs):
            state = None
            for begin in range(0, len(rows) - 1, WINDOW):
                optimizer.zero_grad()
                loss, state = loss_of(model, rows[begin : begin + WINDOW + 1], state)
                loss.backward()
                state = tuple(each.detach() for each in state)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            with torch.no_grad(), optimizer.averaged():
                loss = loss_of(model, unseen)[0].item()
            optimizer.observe(loss)
            if sparsifier:
                sparsifier.rewire()
    with torch.no_grad(), optimizer.averaged():
        bits = loss_of(model, unseen)[0].item() / 0.6931
        print(f"{'sparse' if sparse else 'dense'}: {write(model)!r}")
        return outcome("sparse" if sparse else "dense", bits, clock, model, sparsifier)


def main(epochs: int = 8, characters: int = 40_000) -> list[Outcome]:
    outcomes = [train(sparse, epochs, characters) for sparse in (False, True)]
    show("bits", outcomes)
    return outcomes


if __name__ == "__main__":
    main()
