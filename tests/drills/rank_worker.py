"""The command line, in which every rank writes down what it has when training ends."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from selfish_rnn.cli import main
from selfish_rnn.training.trainer import Trainer

train = Trainer.run


def train_and_tell(self: Trainer) -> None:
    train(self)
    report = {
        "weights": self.sparsifier.active_weights,
        "budget": self.sparsifier.target_weights,
        "topologies": {name: zlib.crc32(mask.numpy().tobytes()) for name, mask in self.sparsifier.masks().items()},
        "parameters": {name: zlib.crc32(tensor.numpy().tobytes()) for name, tensor in self.weights().tensors.items()},
    }
    (Path(os.environ["DRILL_REPORTS"]) / f"{os.environ['RANK']}.json").write_text(json.dumps(report))


Trainer.run = train_and_tell  # type: ignore[method-assign]
main()
