"""Packing a model, and unpacking it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from selfish_rnn.engine import library
from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.engine.packed_weight import PackedWeight, packed_weights
from selfish_rnn.engine.precision import check_precision
from selfish_rnn.engine.registry import counterpart, holds_packed, obstacle, original, replace_modules
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.sparsifier.deferred import DeferredWeight, is_deferred, make_deferred
from selfish_rnn.sparsifier.hooks import listeners
from selfish_rnn.sparsifier.selection import gate_layouts, unpackable
from selfish_rnn.sparsifier.weights import MaskedWeight, SparseWeight
from selfish_rnn.topology import GateLayout

# The name each had; an entry goes when the parameter does.
_replaced: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()


def mark_replaced(before: nn.Module, parameters: dict[str, nn.Parameter], after: nn.Module) -> None:
    """Remember which ``parameters`` of the model ``before`` are not those of the model ``after`` packing."""
    remaining = {id(parameter) for parameter in after.parameters()}
    for name, parameter in parameters.items():
        if id(parameter) not in remaining:
            _replaced[parameter] = name if before is after else f"{name} of the module that was given to pack"


def _refuse_replaced(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not len(_replaced):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in _replaced:
                raise RuntimeError(
                    f"this {type(optimizer).__name__} holds {_replaced[parameter]}, which packing or unpacking has "
                    "replaced: make the optimizer afterwards, from the parameters of the model that was returned"
                )


register_optimizer_step_pre_hook(_refuse_replaced)


_logger = logging.getLogger("selfish_rnn.engine")

Model = TypeVar("Model", bound=nn.Module)
Maker = Callable[[Sequence[int]], PackedWeight]
"""Makes a packed weight, given how many rows each of its gates has."""


def pack(model: Model, *, strict: bool = False, precision: str = "float32") -> Model:
    """Store and multiply only the weights that exist; the model is changed in place, and returned.

    ::

        sparsifier = Sparsifier(model, sparsity=0.9, rewirings=epochs)
        model = pack(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)   # after packing: the parameters are other ones

    What exists is what the model's sparsifier says, or without one what is not zero. ``nn.Linear``, ``nn.Embedding``,
    ``nn.LSTM``, ``nn.GRU``, ``nn.RNN``, their cells, the cells of this package and those that
    :func:`~selfish_rnn.engine.register_packed` was told of give way to their packed counterparts, with their hooks.
    Modules and weights that are used more than once stay shared. A model that is itself such a module gives way as a
    whole: use what is returned.

    A module with sparse weights that cannot be packed stays as it is, and a warning of the logger
    ``selfish_rnn.engine`` says which and why; with ``strict`` that is an error, and nothing is changed. Other
    precisions than float32 and other devices than the CPU are refused. An optimizer that holds parameters that were
    replaced is refused when it makes a step.

    With ``precision="bfloat16"`` products round their operands to bfloat16 and add in float32; weights, gradients and
    optimizer state stay float32. That takes a processor with AVX512_BF16: on others a warning says so, and products are
    float32. Windows of fewer than 32 tokens are computed in float32.
    """
    check_precision(precision)
    packing = _Packing(model)
    packing.refuse_other_tensors(model)
    left = packing.left(model)
    if left and strict:
        raise ValueError("these modules cannot be packed:\n" + _lines(left))
    if left:
        _logger.warning("pack leaves these modules with sparse weights as they are:\n%s", _lines(left))
    parameters = dict(model.named_parameters())
    packed = packing.run(model)
    packing.replace_weights(packed, make_deferred(packed), model)
    for weight in packed_weights(packed).values():
        weight.precision = precision
    mark_replaced(model, parameters, packed)
    return packed


def modules_left(model: nn.Module) -> str:
    """List the modules of a model that have sparse weights and are not packed, each with the reason."""
    return _lines(_Packing(model).left(model))


def _lines(reasons: Mapping[str, str]) -> str:
    return "\n".join(f"  {name or '(the model itself)'}: {reason}" for name, reason in reasons.items())


def put_packed(model: Model, names: Collection[str]) -> Model:
    """Put packed weights without any weight in place of the dense ones of these names, and of no others.

    The model may be on the meta device; everything else stays there.
    """
    makers = {
        id(parameter): partial(_no_weights, parameter.shape)
        for name, parameter in model.named_parameters()
        if name in names
    }
    return _Packing(model, makers).run(model)


def _no_weights(shape: Sequence[int], gate_rows: Sequence[int]) -> PackedWeight:
    return PackedWeight(shape, torch.empty(0, dtype=torch.int64), gate_rows=gate_rows)


class _Packing:
    """One call of :func:`pack`."""

    def __init__(self, model: nn.Module, makers: Mapping[int, Maker] | None = None) -> None:
        library.kernels()
        self._sparsifiers = sparsifiers(model)
        for sparsifier in self._sparsifiers:
            reason = unpackable(sparsifier.method)
            if reason is not None:
                raise ValueError(f"{reason}: it uses the masked engine")
            if sparsifier.in_training:
                raise RuntimeError("pack a model before its optimizer is made: packing replaces its parameters")
        self._named = makers is not None
        self._makers: Mapping[int, Maker] = makers or {
            id(weight.parameter): partial(_packed_weight, weight)
            for sparsifier in self._sparsifiers
            if sparsifier.sparsity > 0
            for weight in sparsifier.weights
            if isinstance(weight, MaskedWeight)
        }
        self._packed: dict[int, PackedWeight] = {}
        self._staying = self._shared_with_others(model)

    def run(self, model: Model) -> Model:
        return replace_modules(model, self._packable, self._module)

    def replace_weights(self, model: nn.Module, parameters: Mapping[int, nn.Parameter], before: nn.Module) -> None:
        """Tell the sparsifiers; ``made`` are, by their ids, the deferred parameters that are not packed."""

        def convert(weight: SparseWeight) -> SparseWeight:
            packed = self._packed.get(id(weight.parameter))
            if packed is not None:
                return packed.bind(weight.name, weight.gates)
            return weight.masked(parameters[id(weight.parameter)]) if isinstance(weight, DeferredWeight) else weight

        for sparsifier in self._sparsifiers:
            sparsifier.replace_weights(model, convert, before)

    def _shared_with_others(self, model: nn.Module) -> set[int]:
        """Weights that a module also uses that stays as it is: those of all their modules stay too."""
        staying: set[int] = set()
        while True:
            more = {
                id(parameter)
                for module in model.modules()
                if not self._packable(module, staying)
                for parameter in module.parameters(recurse=False)
            }
            if more <= staying:
                return staying
            staying |= more

    def left(self, model: nn.Module) -> dict[str, str]:
        """Why modules that have sparse weights stay as they are, by their names."""
        obstacles = {name: self._obstacle(module) for name, module in model.named_modules() if self._is_sparse(module)}
        return {name: obstacle for name, obstacle in obstacles.items() if obstacle is not None}

    def refuse_other_tensors(self, model: nn.Module) -> None:
        """Raise an error if what would be packed is not in single precision on the CPU."""
        for prefix, module in model.named_modules():
            if not self._packable(module):
                continue
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if parameter.dtype != torch.float32:
                    raise TypeError(
                        f"{name} is {str(parameter.dtype).removeprefix('torch.')}, the packed engine computes in "
                        "float32: call model.float() before pack"
                    )
                if parameter.device.type != "cpu":
                    raise ValueError(f"{name} is on {parameter.device}, the packed engine is for the CPU")

    def _packable(self, module: nn.Module, staying: set[int] | None = None) -> bool:
        return self._is_sparse(module) and self._obstacle(module, staying) is None

    def _is_sparse(self, module: nn.Module) -> bool:
        """Return whether the module has a weight bound to a sparsifier, or a prunable weight containing zeros."""
        ruled = any(id(parameter) in self._makers for parameter in module.parameters(recurse=False))
        hooks = () if self._named else module._forward_pre_hooks.values()
        pruned = any(isinstance(hook, BasePruningMethod) for hook in hooks)
        return ruled or pruned or any(self._has_zeros(parameter) for _, (parameter, _) in _weights(module))

    def _obstacle(self, module: nn.Module, staying: set[int] | None = None) -> str | None:
        """Why a module cannot be packed, if it cannot."""
        staying = self._staying if staying is None else staying
        reason = obstacle(module)
        if reason is not None:
            return reason
        for hook in module._forward_pre_hooks.values():  # prune, weight_norm, spectral_norm
            if type(hook).__module__.startswith("torch.nn.utils"):
                return (
                    f"{type(hook).__name__} of torch.nn.utils makes its weight anew before every pass: remove it first"
                )
        weights = dict(_weights(module))
        if any(parameter.ndim != 2 for parameter, _ in weights.values()):
            return "its weight is no matrix"
        if not weights or any(id(parameter) in staying for parameter, _ in weights.values()):
            return "a module that stays as it is uses the same weight"
        return None

    def _has_zeros(self, parameter: nn.Parameter) -> bool:
        # A weight under a sparsifier may have none yet: gradual pruning starts dense.
        unknown = self._named or parameter.is_meta or is_deferred(parameter)
        return id(parameter) in self._makers or (not unknown and bool((parameter == 0).any()))

    def _module(self, module: nn.Module) -> nn.Module:
        """Return the packed counterpart of a module."""
        weights = {name: self._weight(parameter, gates) for name, (parameter, gates) in _weights(module)}
        return counterpart(module, weights)

    def _weight(self, parameter: nn.Parameter, gates: GateLayout) -> PackedWeight:
        if id(parameter) not in self._packed:
            make = self._makers.get(id(parameter), partial(PackedWeight.from_dense, parameter, None))
            weight = make([stop - first for _, first, stop in gates.row_ranges()])
            weight.values.requires_grad_(parameter.requires_grad)
            self._packed[id(parameter)] = weight
        return self._packed[id(parameter)]


def _packed_weight(weight: MaskedWeight, gate_rows: Sequence[int]) -> PackedWeight:
    positions = weight.topology.positions
    start = weight.start() if isinstance(weight, DeferredWeight) else weight.parameter.detach().flatten()[positions]
    return PackedWeight(weight.parameter.shape, positions, start, gate_rows)


def sparsifiers(model: nn.Module) -> list[Sparsifier]:
    """Return the sparsifiers of a model, each once."""
    return [listener for listener in listeners(model) if isinstance(listener, Sparsifier)]


def _weights(module: nn.Module) -> Iterator[tuple[str, tuple[nn.Parameter, GateLayout]]]:
    for name, gates in gate_layouts(module).items():
        parameter = module._parameters.get(name)
        if parameter is not None:
            yield name, (parameter, gates)


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
    if any(sparsifier.in_training for sparsifier in ruling):
        raise RuntimeError(
            "the model is being trained, and unpacking replaces its parameters: unpack copy.deepcopy(model), or call "
            "detach() of its sparsifier first"
        )
    before = dict(model.named_parameters())
    unpacking = _Unpacking()
    unpacked = replace_modules(model, holds_packed, unpacking.module)
    for sparsifier in ruling:
        sparsifier.replace_weights(unpacked, unpacking.masked, model)
    mark_replaced(model, before, unpacked)
    return unpacked


class _Unpacking:
    """One call of :func:`unpack`."""

    def __init__(self) -> None:
        self._parameters: dict[int, nn.Parameter] = {}

    def masked(self, weight: SparseWeight) -> SparseWeight:
        """Return the masked form of a packed weight."""
        if not isinstance(weight, PackedWeight):
            return weight
        return MaskedWeight(weight.name, self._parameter(weight), weight.gates, weight.topology)

    def module(self, module: nn.Module) -> nn.Module:
        """Return the dense counterpart of a packed module."""
        children = module._modules.items()
        return original(
            module, {name: self._parameter(child) for name, child in children if isinstance(child, PackedWeight)}
        )

    def _parameter(self, weight: PackedWeight) -> nn.Parameter:
        if id(weight) not in self._parameters:
            self._parameters[id(weight)] = nn.Parameter(weight.to_dense().detach(), weight.requires_grad)
        return self._parameters[id(weight)]
