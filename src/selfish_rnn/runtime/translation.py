"""From a model and an example to the program of one step, checked against the model's own forward."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.runtime.cells import FUNCTIONS, module_translator
from selfish_rnn.runtime.operations import OPERATIONS
from selfish_rnn.runtime.program import Precision, Program
from selfish_rnn.runtime.tracing import Trace, UntranslatableError

MatrixChoice = Callable[[str, Any], tuple[Any, Precision]]
"""Returns the matrix a program multiplies with and the precision of its activations, given a name and a weight."""

_PROBE = 4
"""Steps of the sequences that find the axis of time."""

_LONGEST_CHECK = 12
"""Steps over which a program is compared with its model."""


@dataclass(frozen=True)
class Call:
    """The call of a model's forward: its inputs, its state, and the axis over which sequences run.

    Args:
        inputs: the example, one sequence of any number of steps.
        state: the state argument, or None where the forward takes none.
        axis: axis of time of inputs, or None for a forward of single steps.
        outputs: names of the outputs, with their positions among the tensors of the result and their axes of time;
            an axis of None means that the forward returns the output of the last step only.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    state: Any
    axis: int | None
    outputs: tuple[tuple[str, int, int | None], ...] = ()

    def step(self, number: int) -> tuple[Tensor, ...]:
        """Return the inputs of one step."""
        return self.inputs if self.axis is None else tuple(x.narrow(self.axis, number, 1) for x in self.inputs)

    @property
    def steps(self) -> int:
        """Number of steps of the example."""
        return 1 if self.axis is None else self.inputs[0].shape[self.axis]

    def with_inputs(self, inputs: Sequence[Tensor]) -> Call:
        """Return the call with another sequence."""
        return Call(self.model, tuple(inputs), self.state, self.axis, self.outputs)

    def names(self) -> list[str]:
        """Return the names of the inputs."""
        return ["x"] if len(self.inputs) == 1 else [f"x{number}" for number in range(len(self.inputs))]

    # The forward itself

    def run(self, inputs: Sequence[Tensor], state: Any = None) -> tuple[list[tuple[str, Tensor]], Any]:
        """Return the named tensors of the forward's result, and the state it returns."""
        if self.state is None:
            return _named(self.model(*inputs)), None
        result = self.model(*inputs, self.state if state is None else state)
        if not isinstance(result, tuple) or len(result) < 2:
            raise ValueError("a forward that takes a state must return a tuple whose last part is the next state")
        shapes = [[tuple(tensor.shape) for tensor in _leaves(value)] for value in (self.state, result[-1])]
        if shapes[0] != shapes[1]:
            raise ValueError(f"the state has the shapes {shapes[0]}, the state that the forward returns {shapes[1]}")
        return _named(result[:-1] if len(result) > 2 else result[0]), result[-1]

    @torch.no_grad()
    def reference(self) -> list[dict[str, Tensor]]:
        """Return the outputs of every step of the example, as the model's own forward computes them."""
        if self.axis is None or all(axis is not None for _, _, axis in self.outputs):
            return self._reference_of_sequence() if self.axis is not None else self._reference_of_steps()
        # The forward returns the output of the last step: of every beginning of the sequence.
        results = []
        for count in range(1, self.steps + 1):
            tensors, _ = self.run([x.narrow(self.axis, 0, count) for x in self.inputs])
            results.append({name: tensors[at][1].reshape(-1) for name, at, _ in self.outputs})
        return results

    def _reference_of_sequence(self) -> list[dict[str, Tensor]]:
        tensors, _ = self.run(self.inputs)
        return [
            {name: tensors[at][1].narrow(axis or 0, step, 1).reshape(-1) for name, at, axis in self.outputs}
            for step in range(self.steps)
        ]

    def _reference_of_steps(self) -> list[dict[str, Tensor]]:
        """Steps that carry their state; the same input in each, as there is no other."""
        results, state = [], self.state
        for _ in range(_PROBE if self.state is not None else 1):
            tensors, state = self.run(self.inputs, state)
            results.append({name: tensors[at][1].reshape(-1) for name, at, _ in self.outputs})
        return results


def checked_inputs(model: nn.Module, example: Any) -> list[Tensor]:
    """Return the inputs of an example, or raise an error if they or the model cannot be streamed."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"stream needs a torch.nn.Module, not {type(model).__name__}")
    inputs = [example] if isinstance(example, Tensor) else list(example) if isinstance(example, list | tuple) else []
    if not inputs or not all(isinstance(x, Tensor) and x.numel() for x in inputs):
        raise TypeError("the example must be a tensor with at least one step, or a tuple of such tensors")
    for x in inputs:
        if x.dtype not in (torch.float32, torch.int64, torch.int32):
            raise TypeError(f"the example must hold float32 numbers or integer token ids, not {x.dtype}")
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu" or parameter.dtype not in (torch.float32, torch.int8):
            raise ValueError(f"{name} is {parameter.dtype} on {parameter.device}: call model.float().cpu() first")
    return [x.detach() for x in inputs]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a block with the model in evaluation mode and without gradients, and restore the mode of every module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        # In inference mode the dispatcher gets whole functions, dropout for example, in place of their operations.
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def understand(model: nn.Module, inputs: Sequence[Tensor], state: Any, axis: int | None) -> Call:
    """Find the axis of time of a forward, and its outputs.

    The axis is that over which what happens at one place changes the output at later places, never at earlier ones.
    """
    call = Call(model, tuple(inputs), state, axis)
    if axis is None:
        axis, looks_ahead = _axis_of_time(call)
        if axis is None and looks_ahead is not None:
            axis = looks_ahead
    else:
        axis = axis % inputs[0].ndim
    if axis is not None:
        inputs = [_one_sequence(x, axis) for x in inputs]
    call = Call(model, tuple(inputs), state, axis)
    return Call(model, call.inputs, state, axis, _outputs(call))


def _one_sequence(x: Tensor, axis: int) -> Tensor:
    """Return the first sequence of a batch: of (T, B, F), (B, T, F) or (B, C, T), or of token ids (T, B) or (B, T)."""
    if x.ndim < 2 + x.is_floating_point():
        return x
    return x.narrow(1 if axis == 0 else 0, 0, 1)


def _axis_of_time(call: Call) -> tuple[int | None, int | None]:
    """Return the axis of time, and one along which steps change earlier ones."""
    forward_axes, open_axes, ahead = list[int](), list[int](), None
    dimensions = min(x.ndim for x in call.inputs)
    features = int(all(x.is_floating_point() for x in call.inputs) and dimensions > 1)
    for axis in range(dimensions):
        known = forward_axes or ahead is not None or len(open_axes) == dimensions - 1
        if axis == dimensions - features and known:
            break  # the last axis holds the features, unless another one does
        flow = _flow(call, axis)
        if flow is None:
            continue
        forward, backward, extends = flow
        if forward and not backward:
            forward_axes.append(axis)
        elif backward:
            ahead = axis
        elif extends:
            open_axes.append(axis)
    if len(forward_axes) > 1:
        raise ValueError(f"time may run along any of the axes {forward_axes} of the example: pass time_axis=")
    if forward_axes:
        return forward_axes[0], ahead
    if ahead is None and call.state is None and open_axes:
        # A forward without memory, where any axis serves; that of the example's steps if it has several.
        return max(open_axes, key=lambda axis: call.inputs[0].shape[axis]), None
    return None, ahead


def _flow(call: Call, axis: int) -> tuple[bool, bool, bool] | None:
    """Return whether outputs depend on inputs before them and after them along an axis, and whether they have it.

    None means that the forward takes no other size along this axis.
    """
    rows: list[Any] = []
    try:
        # Twice, in both directions: a layer that is saturated, or zero as ReLU may be, passes nothing on.
        for change in (1.5, -1.5):
            base = [_stretched(x, axis, _PROBE, change) for x in call.inputs]
            sequences = [
                base,
                [_stretched(x, axis, _PROBE + 1, change) for x in call.inputs],
                [_disturbed(x, axis, 0, change) for x in base],
                [_disturbed(x, axis, _PROBE - 1, change) for x in base],
                [torch.cat([x.narrow(axis, 0, 1)] * _PROBE, axis) for x in base],
            ]
            with torch.no_grad():
                results = [[tensor for _, tensor in call.run(sequence)[0]] for sequence in sequences]
            rows += zip(*results, strict=True)
    except Exception:
        # Of any kind: the model itself refuses a size that it does not take.
        return None
    forward = backward = extends = False
    for before, after, early, late, same in rows:
        along = _changed_axis(before, after)
        if along is None:
            forward |= call.state is None and not torch.equal(before, early)
            continue
        extends = True
        remaining = before.shape[along] - 1
        forward |= not torch.equal(before.narrow(along, 1, remaining), early.narrow(along, 1, remaining))
        backward |= not torch.equal(before.narrow(along, 0, remaining), late.narrow(along, 0, remaining))
        # Even if no input reaches it, a state changes from step to step.
        forward |= not torch.allclose(
            same.narrow(along, 1, remaining), same.narrow(along, 0, 1), atol=1e-5, equal_nan=True
        )
    return forward, backward, extends


def _stretched(x: Tensor, axis: int, size: int, change: float = 0.0) -> Tensor:
    """Return the example with a number of steps along an axis, and noise with a mean."""
    repeats = [1] * x.ndim
    repeats[axis] = -(-size // x.shape[axis])
    longer = x.repeat(repeats).narrow(axis, 0, size).clone()
    if longer.is_floating_point():
        generator = torch.Generator().manual_seed(size)
        longer += change + 0.3 * torch.randn(longer.shape, generator=generator)
    return longer


def _disturbed(x: Tensor, axis: int, at: int, change: float) -> Tensor:
    x = x.clone()
    part = x.narrow(axis, at, 1)
    part.copy_(part + change if x.is_floating_point() else torch.where(part > 0, part - 1, part + 1))
    return x


def _changed_axis(before: Tensor, after: Tensor) -> int | None:
    """Return the axis that differs by one between two results, if there is one."""
    if before.ndim != after.ndim:
        return None
    axes = [axis for axis in range(before.ndim) if after.shape[axis] != before.shape[axis]]
    return axes[0] if len(axes) == 1 and before.shape[axes[0]] == _PROBE else None


@torch.no_grad()
def _outputs(call: Call) -> tuple[tuple[str, int, int | None], ...]:
    """Return the outputs among the tensors of the result: those that have the axis of time, else the first one."""
    axis = call.axis
    if axis is None:
        tensors, _ = call.run(call.inputs)
        return tuple((name, at, None) for at, (name, tensor) in enumerate(tensors) if tensor.is_floating_point())
    results = [call.run([_stretched(x, axis, size) for x in call.inputs])[0] for size in (_PROBE, _PROBE + 1)]
    outputs = list[tuple[str, int, int | None]]()
    for at, ((name, before), (_, after)) in enumerate(zip(*results, strict=True)):
        along = _changed_axis(before, after)
        if along is not None and before.is_floating_point():
            outputs.append((name, at, along))
    if not outputs:
        first = ((name, at) for at, (name, tensor) in enumerate(results[0]) if tensor.is_floating_point())
        outputs = [(name, at, None) for name, at in itertools.islice(first, 1)]
    if not outputs:
        raise ValueError("the model's forward returns no floating-point tensor")
    return (("y", outputs[0][1], outputs[0][2]),) if len(outputs) == 1 else tuple(outputs)


def _named(result: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors of a result: of a tuple y0, y1, …; of a dictionary by their keys."""
    if isinstance(result, Tensor):
        return [("y", result)]
    if isinstance(result, Mapping):
        return [(str(name), value) for name, value in result.items() if isinstance(value, Tensor)]
    return [(f"y{number}", tensor) for number, tensor in enumerate(_leaves(result))]


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _leaves(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: _mapped(part, function) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, function) for part in value))
    return type(value)(_mapped(part, function) for part in value)


# Tracing


def translate(call: Call, matrix: MatrixChoice) -> Program:
    """Return the program of one step of a model."""
    model = call.model
    for name, module in model.named_modules():
        if getattr(module, "bidirectional", False) is True:
            raise UntranslatableError(
                f"{name or 'the model'} ({type(module).__name__}) is bidirectional: its output needs the steps "
                "that are still to come, so it cannot be streamed"
            )
    trace = Trace(model, matrix)
    inputs = [x.detach().clone() for x in call.step(0)]
    for name, x in zip(call.names(), inputs, strict=True):
        if x.is_floating_point():
            trace.bind(x, trace.program.input(name, x.numel()))
        else:
            trace.bind_token(x, name)
    state = None if call.state is None else _mapped(call.state, lambda tensor: tensor.detach().clone())
    values = []
    for tensor in _leaves(state):
        values.append(trace.keep_state(tensor, "state"))
        trace.bind(tensor, values[-1])
    with torch.no_grad(), _observed(model, trace), trace.recording(OPERATIONS, FUNCTIONS):
        try:
            tensors, after = call.run(inputs, state)
        except UntranslatableError:
            raise
        except Exception as error:
            short = "ernel size" in str(error) or "negative dimension" in str(error)
            hint = ": pad a convolution on the left, so that one step gives one output" if short else ""
            raise UntranslatableError(
                f"{trace.failed_module or 'the model'}: its forward fails on a single step ({error}){hint}"
            ) from error
    for name, at, _ in call.outputs:
        if not tensors[at][1].numel():
            raise ValueError(f"the model returns no numbers for one step: its output {name} is empty")
        trace.program.output(name, trace.vector(tensors[at][1]))
    for value, tensor in zip(values, _leaves(after), strict=True):
        trace.program.set_state(value, trace.vector(tensor))
    return trace.program


@contextlib.contextmanager
def _observed(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Let the trace know which module runs, and translate those that are translated whole."""
    replaced: list[tuple[nn.Module, Any]] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        replaced.append((module, module.__dict__.get("forward")))
        module.__dict__["original_forward"] = module.forward
        module.__dict__["forward"] = _observed_forward(trace, name, module, module.forward)
    try:
        yield
    finally:
        for module, forward in replaced:
            del module.__dict__["original_forward"], module.__dict__["forward"]
            if forward is not None:
                module.__dict__["forward"] = forward


def _observed_forward(trace: Trace, name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    translator = module_translator(module)

    def observed(*args: Any, **kwargs: Any) -> Any:
        if trace.paused:
            return forward(*args, **kwargs)
        with trace.inside(name):
            if translator is not None:
                return translator(trace, module, *args, **kwargs)
            return forward(*args, **kwargs)

    return observed


# Checking


@dataclass(frozen=True)
class Difference:
    """Largest differences between a program and its model: absolute, and relative to the largest output."""

    absolute: float
    relative: float
    step: int
    output: str = field(default="")


def check_sequence(call: Call, program: Program) -> Call:
    """Return the call with a sequence long enough to compare a program with its model."""
    if call.axis is None or call.steps >= 4:
        if call.axis is None:
            return call
        return call.with_inputs([x.narrow(call.axis, 0, min(call.steps, _LONGEST_CHECK)) for x in call.inputs])
    generator, inputs = torch.Generator().manual_seed(0), []
    for name, x in zip(call.names(), call.inputs, strict=True):
        shape = list(x.shape)
        shape[call.axis] = _LONGEST_CHECK - 4
        if x.is_floating_point():
            scale = float(x.abs().mean()) or 1.0
            inputs.append(torch.cat([x, scale * torch.randn(shape, generator=generator)], call.axis))
        else:
            count = program.tokens[name].count if name in program.tokens else 1
            inputs.append(torch.cat([x, torch.randint(count, shape, generator=generator)], call.axis))
    return call.with_inputs(inputs)


def step_inputs(call: Call, number: int) -> dict[str, Any]:
    """Return the inputs of one step as a program takes them."""
    return {
        name: x.reshape(-1) if x.is_floating_point() else int(x)
        for name, x in zip(call.names(), call.step(number), strict=True)
    }


def difference(reference: Sequence[Mapping[str, Tensor]], outputs: Sequence[Mapping[str, Tensor]]) -> Difference:
    """Return how much two runs differ."""
    worst = Difference(0.0, 0.0, 0)
    names = reference[0].keys()
    largest = {name: max(float(torch.nan_to_num(step[name]).abs().max()) for step in reference) for name in names}
    for number, (expected, actual) in enumerate(zip(reference, outputs, strict=True)):
        for name in names:
            same = (expected[name] == actual[name]) | (expected[name].isnan() & actual[name].isnan())
            distance = torch.where(same, 0.0, (expected[name] - actual[name]).abs())
            absolute = float(distance.nan_to_num(torch.inf).max())
            relative = absolute / max(largest[name], 1e-30) if absolute else 0.0
            if relative > worst.relative:
                worst = Difference(absolute, relative, number, name)
    return worst
