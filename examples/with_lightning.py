"""Train a sparse classifier under Lightning: one callback, and nothing else changes.

Needs ``pip install 'selfish-rnn[lightning]'``. The task: which of two letters comes more often in a sequence? Expected
output, in about fifteen seconds:

    sparsity 0.0   accuracy 1.000   24,576 weights
    sparsity 0.9   accuracy 1.000    2,458 weights
"""

import logging
import warnings

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from selfish_rnn.integrations.lightning import SelfishCallback

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Classifier(lightning.LightningModule):
    """Read letters with an LSTM and answer after the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 32)
        self.rnn = nn.LSTM(32, 64, batch_first=True)
        self.decoder = nn.Linear(64, 2)

    def forward(self, letters: Tensor) -> Tensor:
        scores: Tensor = self.decoder(self.rnn(self.embedding(letters))[0][:, -1])
        return scores

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def sequences(size: int, generator: torch.Generator) -> TensorDataset:
    """Draw sequences of 21 letters, and which of the first two letters is more frequent."""
    letters = torch.randint(0, 8, (size, 21), generator=generator)
    return TensorDataset(letters, ((letters == 0).sum(1) > (letters == 1).sum(1)).long())


def train(sparsity: float, epochs: int, examples: int) -> tuple[float, int]:
    """Train one classifier; return its accuracy on new sequences and its number of weights."""
    lightning.seed_everything(0, verbose=False)
    generator = torch.Generator().manual_seed(0)
    data = DataLoader(sequences(examples, generator), 64, shuffle=True)
    unseen = DataLoader(sequences(2000, generator), 500)
    callback = SelfishCallback(sparsity=sparsity, prune_rate=0.3, engine="packed")
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback], gradient_clip_val=1.0, **QUIET
    )
    trainer.fit(Classifier(), data, unseen)
    return float(trainer.callback_metrics["accuracy"]), callback.sparsifier.active_weights


def main(epochs: int = 10, examples: int = 6400) -> None:
    """Compare the dense classifier with a sparse one."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    for sparsity in (0.0, 0.9):
        accuracy, weights = train(sparsity, epochs, examples)
        print(f"sparsity {sparsity:3}   accuracy {accuracy:.3f}   {weights:6,d} weights")


if __name__ == "__main__":
    main()
