"""Write English character by character, after reading Python's own documentation.

SNT-ASGD averages every weight since it was grown. The score is in bits per character of unseen text. Expected output,
in about ten seconds:

    sparsity 0.0   2.64 bits   116,352 weights   'The class and anything. An inside. The exception is annotations '
    sparsity 0.8   2.84 bits    23,270 weights   'The class annotations an as casked be section is as as def and "'
"""

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

from selfish_rnn import SNTASGD, Sparsifier, pack

TEXT = " ".join(" ".join(topics[name].split()) for name in ("compound", "naming", "objects", "integers"))
LETTERS = sorted(set(TEXT))
BATCH, WINDOW = 20, 50


class Writer(nn.Module):
    """Score the next character after each one."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), 64)
        self.rnn = nn.LSTM(64, hidden)
        self.output = nn.Linear(hidden, len(LETTERS))

    def forward(self, letters: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple]:
        output, state = self.rnn(self.embedding(letters), state)
        return self.output(output), state


def loss_of(model: Writer, text: Tensor, state: tuple | None = None) -> tuple[Tensor, tuple]:
    """Return the loss of predicting each character of a text, and the state after it."""
    scores, state = model(text[:-1], state)
    return nn.functional.cross_entropy(scores.flatten(0, 1), text[1:].flatten()), state


def write(model: Writer, start: str = "The ", length: int = 60) -> str:
    """Continue a text."""
    letters, state = torch.tensor([LETTERS.index(letter) for letter in start]).view(-1, 1), None
    text = start
    for _ in range(length):
        scores, state = model(letters, state)
        letters = torch.multinomial((scores[-1] / 0.7).softmax(-1), 1)
        text += LETTERS[int(letters)]
    return text


def train(sparsity: float, epochs: int, characters: int) -> None:
    """Train one writer and print its score, its weights and a sample."""
    torch.manual_seed(0)
    ids = torch.tensor([LETTERS.index(letter) for letter in TEXT[: characters + 5000]])
    rows = ids[:characters].view(BATCH, -1).t().contiguous()  # time x batch
    unseen = ids[characters:].view(-1, 1)
    model = Writer()
    sparsifier = Sparsifier(model, sparsity=sparsity, rewirings=epochs)
    model = pack(model)
    optimizer = SNTASGD(model.parameters(), lr=20.0, nonmono=1)
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
        sparsifier.rewire()
    with torch.no_grad(), optimizer.averaged():
        bits = loss_of(model, unseen)[0].item() / 0.6931
        print(f"sparsity {sparsity:3}   {bits:.2f} bits   {sparsifier.active_weights:7,d} weights   {write(model)!r}")


def main(epochs: int = 8, characters: int = 40_000) -> None:
    """Compare the dense writer with a sparse one."""
    for sparsity in (0.0, 0.8):
        train(sparsity, epochs, characters)


if __name__ == "__main__":
    main()
