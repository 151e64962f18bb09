"""Averages of models whose packed weights are rewired."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import swa_utils

from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.engine.packing import sparsifiers
from selfish_rnn.sparsifier.weights import MaskedWeight


class AveragedModel(swa_utils.AveragedModel):
    """``torch.optim.swa_utils.AveragedModel``, for models with packed weights too; arguments and use are the same.

    ::

        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        ...
        optimizer.step()
        average.update_parameters(model)

    The values of a packed weight change their order when it is rewired, so torch's own class is refused after a
    rewiring. Here the average always has the topology of the model: the average of a weight that was removed goes with
    it, that of a weight that was grown begins at the first value it is averaged with, as if it had always had that. In
    a masked model, where the matrices are whole, a removed weight fades out of the average and a grown one fades in
    from zero.
    """

    def update_parameters(self, model: nn.Module) -> None:
        weights = packed_weights(self.module).values(), packed_weights(model).values()
        for average, weight in zip(*weights, strict=True):
            average.follow(weight, weight.values)
        super().update_parameters(model)


@torch.no_grad()
def blend_(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move an exponential average, a target network or a mean teacher towards a model, position by position.

    ::

        target = copy.deepcopy(model)     # after binding, and after packing
        ...
        optimizer.step()
        blend_(target, model, decay=0.999)

    Every parameter becomes ``decay * average + (1 - decay) * model``. A sparse matrix is blended as if both were dense,
    and then restricted to the topology of the model: a weight that exists in both is blended, one that the model has
    grown starts from zero in the average, and one that the model has removed leaves the average. So the average has
    the topology of the model, masked or packed. Buffers are copied. With ``decay=0`` the average becomes a copy.

    Args:
        average: a deep copy of the model, changed in place.
        model: a dense, masked or packed model.
        decay: weight of the average, from 0 to 1.
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"decay must be from 0 to 1, got {decay}")
    _check_alike(average, model)
    indexes = set()
    for mean, packed in zip(packed_weights(average).values(), packed_weights(model).values(), strict=True):
        mean.follow(packed, torch.zeros_like(packed.values))
        indexes.add(id(mean.index))
    masks = {
        id(weight.parameter): weight.mask
        for sparsifier in sparsifiers(model)
        for weight in sparsifier.weights
        if isinstance(weight, MaskedWeight)
    }
    for parameter, source in zip(average.parameters(), model.parameters(), strict=True):
        parameter.lerp_(source.to(parameter), 1 - decay)
        if id(source) in masks:
            parameter.mul_(masks[id(source)].to(parameter))
    for buffer, original in zip(average.buffers(), model.buffers(), strict=True):
        if id(buffer) not in indexes:
            buffer.copy_(original)


def _check_alike(average: nn.Module, model: nn.Module) -> None:
    """Raise an error unless two models have the same parameters, packed in the same places."""
    if quantized_weights(average) or quantized_weights(model):
        raise ValueError("int8 models cannot be blended: blend the models they are made from, then quantize a copy")
    ours, theirs = (_shapes(module) for module in (average, model))
    different = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    if different:
        raise ValueError(
            f"the average and the model differ in {', '.join(different[:5])}: make the average as "
            "copy.deepcopy(model), after the model is packed, and give both without wrappers"
        )


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of parameters and the names of buffers."""
    shapes = {
        name: getattr(parameter, "matrix_shape", tuple(parameter.shape)) for name, parameter in model.named_parameters()
    }
    return {**shapes, **{name: None for name, _ in model.named_buffers()}}
