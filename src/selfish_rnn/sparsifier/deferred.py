"""Models whose matrices are created once their topology is known."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from selfish_rnn.sparsifier.weights import MaskedWeight
from selfish_rnn.topology import GateLayout, Topology

__all__ = ["deferred_init", "is_deferred", "make_deferred", "start_at"]


aten = torch.ops.aten

_DRAWING = {aten.uniform_.default: 2, aten.normal_.default: 2}
"""Functions that fill a tensor with random numbers, one for each position, and their numbers of arguments."""

_FILLING = {aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor}

_ELEMENTWISE = {
    aten.add_.Tensor,
    aten.sub_.Tensor,
    aten.mul_.Tensor,
    aten.mul_.Scalar,
    aten.div_.Tensor,
    aten.div_.Scalar,
    aten.neg_.default,
    aten.clamp_.default,
}
"""Functions that change each number by itself; other tensors among their arguments must be single numbers."""

_OUT_OF_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.neg.default: aten.neg_.default,
}

_VIEWS = {
    aten.detach.default,
    aten.alias.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
}

_FACTORIES: dict[Any, Callable[..., Any] | None] = {
    aten.empty.memory_format: None,
    aten.zeros.default: aten.zero_.default,
    aten.rand.default: aten.uniform_.default,
    aten.randn.default: aten.normal_.default,
}
"""Functions that make new tensors, and the functions that fill these."""


@contextlib.contextmanager
def deferred_init() -> Iterator[None]:
    """Defer the matrices that are made in this block: only their starting values are recorded, which takes no memory.

    ::

        with selfish_rnn.deferred_init():
            model = Model()                                   # your own, unchanged
        sparsifier = Sparsifier(model, sparsity=0.99, rewirings=epochs)
        model = pack(model)                                   # makes the weights that exist, and no others

    So a network is as large as its weights from the start, and may be larger than memory would hold in dense form. Up
    to 2^30 positions a matrix has the starting values, and every matrix the topology, that the same seed gives without
    this block. A matrix whose starting values depend on each other (``orthogonal_``, ``trunc_normal_``) is
    made whole, and takes its memory until the model is packed.
    """
    with _Deferring():  # type: ignore[no-untyped-call]
        yield


def is_deferred(tensor: Tensor) -> bool:
    """Return whether a tensor is deferred."""
    return isinstance(tensor, DeferredTensor)


def start_at(parameter: Tensor, positions: Tensor) -> Tensor:
    """Return the starting values of a deferred parameter at sorted positions."""
    assert isinstance(parameter, DeferredTensor)
    return parameter.start.at(positions)


def make_deferred(model: nn.Module) -> dict[int, nn.Parameter]:
    """Make the deferred parameters of a model whole; return the new parameters by the ids of the old ones."""
    replaced: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if isinstance(parameter, DeferredTensor):
                if id(parameter) not in replaced:
                    replaced[id(parameter)] = nn.Parameter(parameter.whole(), parameter.requires_grad)
                setattr(module, name, replaced[id(parameter)])
        for name, buffer in list(module._buffers.items()):
            if isinstance(buffer, DeferredTensor):
                setattr(module, name, buffer.whole())
    return replaced


class DeferredTensor(Tensor):
    """A float32 tensor on the CPU of which only its shape is there, and how it starts.

    Functions that change each number by itself are recorded. Others make the tensor inside :func:`deferred_init`;
    afterwards that is an error for parameters, which wait for :func:`~selfish_rnn.engine.pack`.
    """

    start: Start
    first: int
    """Where in the memory of the whole matrix it begins: a view of some rows has a place in it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[DeferredTensor], start: Start, first: int, shape: Sequence[int]) -> DeferredTensor:
        tensor: Any = Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=torch.float32)
        tensor.start, tensor.first = start, first
        deferred: DeferredTensor = tensor
        return deferred

    def __init__(self, start: Start, first: int, shape: Sequence[int]) -> None:
        super().__init__()

    def whole(self) -> Tensor:
        """Return the tensor itself, with memory."""
        flat = self.start.whole()
        return flat[self.first : self.first + self.numel()].view(self.shape)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeferredTensor({' x '.join(map(str, self.shape))})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Callable[..., Any],
        types: Any,
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        target, named = arguments[0] if arguments else None, named or {}
        if isinstance(target, DeferredTensor) and target.start.values is None:
            done = target._remember(function, tuple(arguments[1:]), named)
            if done is not None:
                return done
        elif isinstance(target, DeferredTensor) and function in _VIEWS:
            return target._view(function, tuple(arguments[1:]), named)
        _refuse_parameters(function, arguments, named)
        arguments, named = tree_map(_made, (arguments, named))
        result = function(*arguments, **named)
        return target if isinstance(target, DeferredTensor) and result is arguments[0] else result

    def _remember(self, function: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the result of a function that can be recorded, or None."""
        stop = self.first + self.numel()
        if function in _VIEWS:
            return self._view(function, arguments, named)
        if function in _DRAWING:
            generator = named.get("generator")
            filling = (*arguments, *_defaults(function)[len(arguments) :])[: _DRAWING[function]]
            self.start.draw(self.first, stop, function, filling, generator)
            return self
        if any(isinstance(argument, Tensor) and argument.ndim for argument in (*arguments, *named.values())):
            return None
        if function in _FILLING or function in _ELEMENTWISE:
            step = functools.partial(function, **named)
            self.start.add(Step(self.first, stop, step, arguments, overwrites=function in _FILLING))
            return self
        if function in _OUT_OF_PLACE and self.numel() == self.start.size:
            copy = DeferredTensor(Start(self.start.size, list(self.start.steps)), 0, self.shape)
            return copy._remember(_OUT_OF_PLACE[function], arguments, named)
        return None

    def _view(self, function: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return a deferred view of whole rows; other views make the matrix."""
        frame = torch.empty(self.start.size, device="meta")
        here = frame[self.first : self.first + self.numel()].view(self.shape)
        result = function(here, *arguments, **named)
        several = result if isinstance(result, (list, tuple)) else [result]
        if not all(view.is_contiguous() for view in several):
            return function(self.whole(), *arguments, **named)
        views = [DeferredTensor(self.start, int(view.storage_offset()), view.shape) for view in several]
        return views if isinstance(result, (list, tuple)) else views[0]


def _defaults(function: Any) -> tuple[Any, ...]:
    """The arguments of a function after the tensor, where they are not given."""
    return tuple(argument.default_value for argument in function._schema.arguments[1:] if not argument.kwarg_only)


def _made(value: Any) -> Any:
    return value.whole() if isinstance(value, DeferredTensor) else value


def _refuse_parameters(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    if _Deferring.blocks:
        return
    for value in (*arguments, *named.values()):
        if isinstance(value, DeferredTensor) and isinstance(value, nn.Parameter):
            raise RuntimeError(
                f"a weight of shape {tuple(value.shape)} is not made yet, and {function} needs it: call pack(model) "
                "first, or make the model without deferred_init()"
            )


class _Deferring(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Defers the matrices that are made while it is active."""

    blocks = 0
    """Count."""

    def __enter__(self) -> Any:
        _Deferring.blocks += 1
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        _Deferring.blocks -= 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function not in _FACTORIES or not _is_matrix(arguments[0], named):
            return function(*arguments, **named)
        shape = tuple(map(int, arguments[0]))
        tensor = DeferredTensor(Start(math.prod(shape)), 0, shape)
        filling = _FACTORIES[function]
        return tensor if filling is None else tensor._remember(filling, (), {})


def _is_matrix(shape: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether the result is a float32 matrix on the CPU."""
    device = named.get("device") or torch.get_default_device()
    dtype = named.get("dtype") or torch.get_default_dtype()
    on_cpu = torch.device(device).type == "cpu"
    return len(shape) == 2 and math.prod(shape) > 0 and on_cpu and dtype == torch.float32


LARGEST_REPLAYED = 2**30
"""Up to so many positions a matrix starts with the numbers that torch would draw for all of them: 4 GiB, with mask and
gradient 12, which a machine may have. That takes the time of drawing them all. For a larger matrix only the numbers of
the weights that exist are drawn."""

BLOCK = 2**16
"""Count of numbers that are drawn at a time."""

_TOGETHER = 16
"""torch draws normal numbers in groups of so many, and the last group of a tensor anew if it is not full."""


@dataclass(frozen=True)
class Step:
    """One function applied in place to the positions from ``first`` up to ``stop``; ``state`` says what it draws."""

    first: int
    stop: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    overwrites: bool = False
    state: Tensor | None = None

    def run(self, values: Tensor, generator: torch.Generator | None = None) -> None:
        named = {} if generator is None else {"generator": generator}
        self.function(values, *self.arguments, **named)

    def drawing(self) -> torch.Generator:
        """A generator that stands where the step found it."""
        assert self.state is not None
        generator = torch.Generator()
        generator.set_state(self.state)
        return generator


@dataclass
class Start:
    """Starting values of a matrix of ``size`` positions; ``values`` are all of them, once something needed them."""

    size: int
    steps: list[Step] = field(default_factory=list)
    values: Tensor | None = None

    def add(self, step: Step) -> None:
        if step.overwrites and step.first == 0 and step.stop == self.size:
            self.steps.clear()
        self.steps.append(step)

    def draw(
        self,
        first: int,
        stop: int,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        generator: torch.Generator | None,
    ) -> None:
        """Add a step that draws random numbers, and leave the generator as drawing them would."""
        source = torch.default_generator if generator is None else generator
        if self.size > LARGEST_REPLAYED:
            seed = int(torch.randint(2**62, (), generator=source))
            self.add(Step(first, stop, function, arguments, True, torch.Generator().manual_seed(seed).get_state()))
            return
        step = Step(first, stop, function, arguments, True, source.get_state())
        self.add(step)
        for _ in _drawn(step, source):
            pass

    def at(self, positions: Tensor) -> Tensor:
        """Return the starting values at sorted positions."""
        if self.values is not None:
            return self.values[positions]
        values = torch.empty(len(positions))
        for step in self.steps:
            first, stop = np.searchsorted(positions.numpy(), [step.first, step.stop]).tolist()
            chosen = values[first:stop]
            if step.state is None or self.size > LARGEST_REPLAYED:
                step.run(chosen, None if step.state is None else step.drawing())
            else:
                _choose(step, positions[first:stop] - step.first, chosen)
        return values

    def whole(self) -> Tensor:
        """Return all values, flat; the matrix takes its memory from here on."""
        if self.values is None:
            self.values = torch.empty(self.size)
            for step in self.steps:
                step.run(self.values[step.first : step.stop], None if step.state is None else step.drawing())
            self.steps.clear()
        return self.values


def _drawn(step: Step, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """Yield the random numbers of a step in blocks, each with its first position; a block is valid until the next."""
    size, start = step.stop - step.first, 0
    memory = torch.empty(min(BLOCK + _TOGETHER, size))
    while start < size:
        stop = size if size - start < BLOCK + _TOGETHER else start + BLOCK
        block = memory[: stop - start]
        step.run(block, generator)
        yield start, block
        start = stop


def _choose(step: Step, places: Tensor, values: Tensor) -> None:
    """Select the numbers of a step at sorted places."""
    done = 0
    for start, block in _drawn(step, step.drawing()):
        stop = int(np.searchsorted(places.numpy(), start + len(block)))
        torch.index_select(block, 0, places[done:stop] - start, out=values[done:stop])
        done = stop


class DeferredWeight(MaskedWeight):
    """Deferred matrix and its topology. There is nothing to mask."""

    def __init__(self, name: str, parameter: nn.Parameter, gates: GateLayout, topology: Topology) -> None:
        self.name, self._parameter, self.gates = name, parameter, gates
        self.shape = tuple(parameter.shape)
        self._topology = topology
        self.drop_gradient()

    def delete_outside(self) -> None:
        """Do nothing: there are no weights yet."""

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def count(self) -> int:
        return self._topology.count

    def start(self) -> Tensor:
        """Return the starting values of the existing weights, in the order of their positions."""
        return start_at(self.parameter, self._topology.positions)

    def load_topology(self, topology: Topology) -> None:
        self._topology = topology

    def masked(self, parameter: nn.Parameter) -> MaskedWeight:
        """Return the masked form, with the parameter that was made."""
        weight = MaskedWeight(self.name, parameter, self.gates, self._topology)
        weight.delete_outside()
        return weight

    def drop_backup(self) -> None:
        """Do nothing."""

    def has_weights_outside(self) -> bool:
        return False

    def apply_mask(self) -> NoReturn:
        raise RuntimeError(f"{self.name} is not made yet: call pack(model) before the optimizer is made")
