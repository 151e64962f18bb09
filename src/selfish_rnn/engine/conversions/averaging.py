"""Averages of models whose packed weights are rewired."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import swa_utils

from selfish_rnn.engine.packed_weight import PackedWeight, packed_weights


class AveragedModel(swa_utils.AveragedModel):
    """``torch.optim.swa_utils.AveragedModel``, for models with packed weights too; arguments and use are the same.

    ::

        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        ...
        optimizer.step()
        average.update_parameters(model)

    The values of a packed weight change their order when it is rewired, so torch's own class would average values of
    different positions; a model it has averaged so is refused when it is used. Here the average always has the topology
    of the model: the average of a weight that was removed goes with it, that of a weight that was grown begins at the
    first value it is averaged with, as if it had always had that. In a masked model, where the matrices are whole, a
    removed weight fades out of the average and a grown one fades in from zero.
    """

    def update_parameters(self, model: nn.Module) -> None:
        weights = packed_weights(self.module).values(), packed_weights(model).values()
        for average, weight in zip(*weights, strict=True):
            _take_topology(average, weight)
        super().update_parameters(model)


@torch.no_grad()
def _take_topology(average: PackedWeight, weight: PackedWeight) -> None:
    """Give an average the topology of its weight; what is new has the weight's value."""
    if torch.equal(average.index, weight.index):
        return
    before, places_before = average.sorted()
    positions, places = weight.sorted()
    values = weight.values.detach()[places]
    ranks = torch.searchsorted(before, positions).clamp_(max=max(len(before) - 1, 0))
    kept = before[ranks] == positions if len(before) else torch.zeros(len(positions), dtype=torch.bool)
    values[kept] = average.values.detach()[places_before[ranks[kept]]]
    average.assign(positions, values)
