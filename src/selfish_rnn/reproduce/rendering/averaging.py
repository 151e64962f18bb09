"""When the averages of a result start, and whether pruning was over by then."""

from __future__ import annotations

from dataclasses import dataclass

from selfish_rnn.reproduce.results import Result

STALE = "‡"
STALE_MEANING = (
    "averaging starts before pruning ends, so the network that is measured averages epochs in which it had more "
    "weights: the number does not show how good pruning is."
)


@dataclass(frozen=True)
class AveragingStart:
    """Epoch with which the averages of a best model start: the last start or restart up to its epoch."""

    epoch: int | None
    stale: bool = False
    """True if the network had more weights in that epoch than in the best one."""


def averaging_of(result: Result) -> AveragingStart:
    """Return the start of the averages that a result was tested with; ``epoch`` is None for raw weights."""
    epochs, active = result.series["epoch"], result.series["averaging"]
    best = result.summary.get("best_epoch", epochs[-1])
    starts = [
        epoch
        for index, epoch in enumerate(epochs)
        if active[index] and (index == 0 or not active[index - 1]) and epoch <= best
    ]
    if not starts or not active[epochs.index(best)]:
        return AveragingStart(None)
    # A restart after epoch e begins new averages with epoch e + 1.
    restarts = [epoch + 1 for epoch in result.settings.get("restart_at") or () if starts[-1] <= epoch < best]
    start = max(starts[-1], *restarts) if restarts else starts[-1]
    weights = dict(zip(epochs, result.series.get("active_weights") or [0] * len(epochs), strict=True))
    return AveragingStart(start, weights[start] > weights[best])
