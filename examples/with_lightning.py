"""The classifier of ``classifier.py`` under Lightning: one callback, and nothing else changes.

Run it with ``python examples/with_lightning.py`` after ``pip install 'selfish-rnn[lightning]'``.
"""

import logging
import warnings

import lightning
import torch
from classifier import Classifier, batch
from comparison import Outcome, outcome, show, timed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from selfish_rnn.integrations.lightning import SelfishCallback


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Classifier()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def train(sparse: bool, epochs: int, examples: int) -> Outcome:
    lightning.seed_everything(0, verbose=False)
    generator = torch.Generator().manual_seed(0)
    data = DataLoader(TensorDataset(*batch(examples, generator)), 64, shuffle=True)
    unseen = DataLoader(TensorDataset(*batch(2000, generator)), 500)
    callback = SelfishCallback(sparsity=0.9, prune_rate=0.3, engine="packed")
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback] if sparse else [], gradient_clip_val=1.0, **quiet
    )
    module = Module()
    with timed() as clock:
        trainer.fit(module, data, unseen)
    accuracy = float(trainer.callback_metrics["accuracy"])
    name, sparsifier = ("sparse", callback.sparsifier) if sparse else ("dense", None)
    return outcome(name, accuracy, clock, module.model, sparsifier)


def main(epochs: int = 10, examples: int = 6400) -> list[Outcome]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    outcomes = [train(sparse, epochs, examples) for sparse in (False, True)]
    show("accuracy", outcomes)
    return outcomes


if __name__ == "__main__":
    main()
