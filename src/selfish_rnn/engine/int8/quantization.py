"""From a sparse model in single precision to int8 weights."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeVar

from torch import nn

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight, rounded
from selfish_rnn.engine.packed_weight import PackedWeight, packed_weights
from selfish_rnn.engine.packing import mark_replaced, modules_left, pack, sparsifiers
from selfish_rnn.engine.registry import put_quantized, replace_modules

Model = TypeVar("Model", bound=nn.Module)


def quantize(model: Model, *, arithmetic: Literal["int8", "float32"] = "int8", strict: bool = False) -> Model:
    """Round the existing weights of a sparse model to int8, for inference; the model is changed in place, and returned.

    ::

        small = quantize(copy.deepcopy(model))     # packed or masked, anyone's
        scores, state = small(tokens)              # the same calls as before

    Every row of a matrix has a scale of its own, ``max |w| / 127``; weights that round to zero are dropped. With
    ``arithmetic="int8"`` the activations that meet a matrix are rounded too, every vector as it comes, and products are
    sums of whole numbers: bit-equal on every processor, for any number of threads and sequences. With ``"float32"``
    only the weights are rounded and everything is computed in single precision: for a model that is too sensitive.

    What is not packed yet is packed first, as :func:`~selfish_rnn.engine.pack` does it (``strict`` as there). What
    cannot be packed stays in single precision, and a warning says why. Modules keep torch's call conventions. The model
    is in evaluation mode afterwards, and cannot be trained any more.
    """
    if arithmetic not in ("int8", "float32"):
        raise ValueError(f"arithmetic must be 'int8' or 'float32', got {arithmetic!r}")
    ruling = sparsifiers(model)
    if any(sparsifier.in_training for sparsifier in ruling):
        raise RuntimeError("the model is being trained, and quantizing ends that: quantize copy.deepcopy(model)")
    model = pack(model, strict=strict)
    weights = packed_weights(model)
    if not weights:
        left = modules_left(model)
        raise ValueError(
            f"no sparse weight of the model can be quantized, because these modules cannot be packed:\n{left}"
            if left
            else "the model has no sparse weights to quantize: nothing in it is packed, masked or zero; for a dense "
            "model there is torch.ao.quantization.quantize_dynamic"
        )
    for sparsifier in ruling:
        sparsifier.detach()
    before = dict(model.named_parameters())
    if arithmetic == "int8":
        together = sum(len(weight.values) for weight in weights.values())
        model = put_quantized(model, partial(_quantized, together=together))
    else:
        model = replace_modules(model, lambda module: isinstance(module, PackedWeight), _rounded)
    mark_replaced(model, before, model)
    return model.eval().requires_grad_(False)


def _quantized(weight: PackedWeight, together: int) -> QuantizedWeight:
    positions, places = weight.sorted()
    return QuantizedWeight.rounded(weight.shape, positions, weight.values.detach()[places], together)


def _rounded(weight: PackedWeight) -> PackedWeight:
    """Return a packed weight with the values that int8 has."""
    positions, places = weight.sorted()
    remaining, numbers, scale = rounded(weight.shape, positions, weight.values.detach()[places])
    return PackedWeight(weight.shape, remaining, numbers * scale[remaining // weight.shape[1]], weight.gate_rows)
