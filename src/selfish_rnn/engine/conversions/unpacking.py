"""From a packed model back to ordinary modules."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from selfish_rnn.engine.conversions.replaced import mark_replaced
from selfish_rnn.engine.inference.quantized_weight import quantized_weights
from selfish_rnn.engine.packed_sparse_weight import PackedSparseWeight
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.packing import sparsifiers, tell_sparsifiers
from selfish_rnn.engine.registry import holds_packed, original, replace_modules
from selfish_rnn.sparsifier.weights import MaskedWeight, SparseWeight

Model = TypeVar("Model", bound=nn.Module)


def unpack(model: Model) -> Model:
    """Undo :func:`~selfish_rnn.engine.pack`: ordinary modules, with zeros where no weight exists.

    ::

        exported = unpack(copy.deepcopy(model).eval())
        torch.export.export(exported, (inputs,))          # or torch.jit.trace, torch.onnx.export, quantization

    The model is changed in place, and returned; one that is itself a packed module gives way as a whole. A sparsifier
    goes on with masked weights, unless an optimizer has made steps: then unpack a deep copy, or ``detach()`` it first.
    A model of which weights are int8 (:func:`~selfish_rnn.engine.quantize`) is refused, and not changed.
    """
    whole_numbers = quantized_weights(model)
    if whole_numbers:
        raise ValueError(
            f"{', '.join(whole_numbers)} of this model are int8, and have no ordinary form to go back to: unpack the "
            "model they were made from, or, for ordinary modules with the rounded weights, "
            'unpack(quantize(copy.deepcopy(model), arithmetic="float32")) of that model'
        )
    ruling = sparsifiers(model)
    if any(sparsifier._optimizers for sparsifier in ruling):
        raise RuntimeError(
            "the model is being trained, and unpacking replaces its parameters: unpack copy.deepcopy(model), or call "
            "detach() of its sparsifier first"
        )
    before = dict(model.named_parameters())
    unpacking = _Unpacking()
    unpacked = replace_modules(model, holds_packed, unpacking.module)
    tell_sparsifiers(ruling, unpacked, unpacking.masked, model)
    mark_replaced(model, before, unpacked)
    return unpacked


class _Unpacking:
    """One call of :func:`unpack`."""

    def __init__(self) -> None:
        self._parameters: dict[int, nn.Parameter] = {}

    def masked(self, weight: SparseWeight) -> SparseWeight:
        """The same weight of a sparsifier, stored whole."""
        if not isinstance(weight, PackedSparseWeight):
            return weight
        return MaskedWeight(weight.name, self._parameter(weight.packed), weight.gates, weight.topology)

    def module(self, module: nn.Module) -> nn.Module:
        """What takes the place of a packed module."""
        children = module._modules.items()
        return original(
            module, {name: self._parameter(each) for name, each in children if isinstance(each, PackedWeight)}
        )

    def _parameter(self, weight: PackedWeight) -> nn.Parameter:
        if id(weight) not in self._parameters:
            self._parameters[id(weight)] = nn.Parameter(weight.to_dense().detach(), weight.requires_grad)
        return self._parameters[id(weight)]
