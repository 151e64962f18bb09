"""Fine-tune an exported sparse language model on other text: its topology is kept and rewired further.

The example first trains and exports a small model with the command line (``pip install 'selfish-rnn[cli]'``). Expected
output, in about twenty seconds:

    perplexity 410.3 as exported, 35.3 fine-tuned, 58,632 weights before and after
"""

import math
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from selfish_rnn import Sparsifier, load_model
from selfish_rnn.models import LanguageModel


def export(folder: Path, *settings: str) -> Path:
    """Train a small language model on the built-in corpus, and export it."""
    command, run, file = [sys.executable, "-m", "selfish_rnn"], str(folder / "run"), folder / "model.safetensors"
    small = ("model.embedding=64", "model.hidden=64", "sparsity=0.8", "optimizer.name=adam", *settings)
    subprocess.run([*command, "train", *small, "--run", run], check=True, capture_output=True)
    subprocess.run([*command, "export", run, "--out", str(file)], check=True, capture_output=True)
    return file


def loss_of(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Return the loss of predicting each word."""
    scores, _ = model(tokens[:-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), tokens[1:].flatten())


def main(epochs: int = 5, *settings: str) -> None:
    """Print the perplexity of the other text before and after fine-tuning."""
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        file = export(Path(folder), *(settings or ("epochs=3",)))
        model = load_model(file, packed=False)
    words = model.vocabulary.encode(" ".join(topics["typesseq"].lower().split()[:2500]))
    rows = torch.tensor(words[: len(words) // 10 * 10]).view(10, -1).t()  # time x batch
    other, unseen = rows[: 4 * len(rows) // 5], rows[4 * len(rows) // 5 :]

    # topology="nonzero" takes the positions that the file has.
    sparsifier = Sparsifier(model, topology="nonzero", prune_rate=0.3, rewirings=epochs)
    weights = sparsifier.active_weights
    with torch.no_grad():
        before = math.exp(loss_of(model, unseen).item())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(epochs):
        model.train()
        for begin in range(0, len(other) - 1, 20):
            optimizer.zero_grad()
            loss_of(model, other[begin : begin + 21]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        sparsifier.rewire()
    model.eval()
    with torch.no_grad():
        after = math.exp(loss_of(model, unseen).item())
    assert sparsifier.active_weights == weights
    print(f"perplexity {before:.1f} as exported, {after:.1f} fine-tuned, {weights:,d} weights before and after")


if __name__ == "__main__":
    main()
