"""Start of the averages of a result, and whether pruning was over by then."""

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
    """First epoch of the averages of a best model: after the last start or restart up to its epoch.

    ``label`` is ``-`` for raw weights. ``stale`` is true if the network had more weights in that epoch than in the best
    one.
    """

    label: str
    stale: bool = False


RAW = AveragingStart("-")


def averaging_of(result: Result) -> AveragingStart:
    """Return the start of the averages that a result was tested with."""
    epochs = result.series["epoch"]
    best = result.summary.get("best_epoch", epochs[-1])
    start = _first_start(result, best)
    if start is None:
        return RAW
    # A restart after epoch e begins new averages with epoch e + 1.
    start = max([start, *(epoch + 1 for epoch in result.settings.get("restart_at") or () if start <= epoch < best)])
    weights = dict(zip(epochs, result.series.get("active_weights") or [0] * len(epochs), strict=True))
    return AveragingStart(str(start), weights.get(start, 0) > weights.get(best, 0))


def _first_start(result: Result, best: int) -> int | None:
    """Return the first epoch of the averages, None where the best model is before it."""
    epochs, active = result.series["epoch"], result.series["averaging"]
    starts = [
        epoch
        for index, epoch in enumerate(epochs)
        if active[index] and (index == 0 or not active[index - 1]) and epoch <= best
    ]
    return starts[-1] if starts else None
