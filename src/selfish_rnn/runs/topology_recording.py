"""Writing down the topologies of a run while it is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from selfish_rnn.runs.topologies import TopologyHistory
from selfish_rnn.system import give_back_reused_memory
from selfish_rnn.topology import Rewiring, Topology
from selfish_rnn.training.metrics import EpochRecord, Listener, StepReport
from selfish_rnn.training.trainer import Trainer


class TopologyRecorder(Listener):
    """Keeps the history of a run's topologies: what is there at the start and what every rewiring changes.

    It compares what exists before and after, so it works with whatever makes the network sparse, also where weights
    die without rewirings; a position that goes and comes again in one rewiring has not changed. Between rewirings it
    holds one bit for each position, or the positions that exist where that is less.
    """

    def __init__(self, history: TopologyHistory) -> None:
        self.history = history
        self._known: dict[str, Tensor] = {}
        self._rewirings: int | None = None

    def on_start(self, trainer: Trainer) -> None:
        self._trainer = trainer
        weights = trainer.sparsifier.weights
        self.history.continue_from(
            {weight.name: weight.topology for weight in weights}, trainer.state.step, trainer.state.epoch
        )
        self._known = {weight.name: weight.topology.to_saved() for weight in weights}
        self._rewirings = self._rewirings_done()

    def on_step(self, report: StepReport) -> None:
        if self._rewirings_done() != self._rewirings:  # inside an epoch
            self._record(self._trainer.state.step, report.epoch)

    def on_epoch(self, record: EpochRecord) -> None:
        self._record(record.step, record.epoch)

    def _rewirings_done(self) -> int | None:
        return getattr(self._trainer.sparsifier, "rewirings_done", None)

    def _record(self, step: int, epoch: int) -> None:
        self._rewirings = self._rewirings_done()
        with self.history.recording(step, epoch) as recording:
            for weight in self._trainer.sparsifier.weights:
                after = weight.topology
                saved = after.to_saved()
                if not torch.equal(saved, self._known[weight.name]):
                    before = Topology.from_saved(self._known[weight.name], after.shape, after.gates)
                    give_back_reused_memory()
                    rewiring = Rewiring.between(before, after)
                    give_back_reused_memory()
                    recording.add(weight.name, rewiring, after)
                    self._known[weight.name] = saved
                    del before, rewiring
                del after, saved
                give_back_reused_memory()
