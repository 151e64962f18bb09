"""Streams: a model run one step at a time, with its state kept between the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selfish_rnn.runtime.precision import LayerPrecision, LayerReport, Precisions
from selfish_rnn.runtime.program import Program
from selfish_rnn.runtime.reference import ReferenceStream
from selfish_rnn.runtime.translation import (
    Call,
    Difference,
    check_sequence,
    checked_inputs,
    difference,
    evaluating,
    step_inputs,
    translate,
    understand,
)

TOLERANCE = 1e-5
"""Largest difference between a float32 program and its model, relative to the largest output."""

INT8_TOLERANCE = 0.1
"""The same for a model whose weights are int8 already: rounded activations amplify differences in the last bit."""


def stream(
    model: nn.Module,
    example: Tensor | Sequence[Tensor],
    *,
    state: Any = None,
    time_axis: int | None = None,
    precision: LayerPrecision | Mapping[str, LayerPrecision] = "float32",
) -> Stream:
    """Translate a model into a stream, which runs one step at a time and keeps the state between steps.

    ::

        stream = selfish_rnn.stream(model, torch.randn(1, 1, 40))    # a sequence of one step
        y = stream(x)                                                # one vector in, one vector out
        ys = stream.run(xs)                                          # steps x features
        stream.save("model.srnn")                                    # for Python, C and C++

    The model is an ordinary module: packed, int8, masked or dense. Its own forward runs once on a single step of the
    example, and every operation is translated. Then the forward runs over a longer sequence and the outputs of the
    stream are compared with its outputs; a stream that differs is refused, so a stream that is returned is right.

    Args:
        model: module whose forward takes sequences, or single steps with a state. Evaluation mode is used.
        example: one input of the forward, or a tuple of several. Any number of steps; more steps make the comparison
            more representative. Token ids are integers.
        state: the state argument of the forward, for a model that takes one as its last argument and returns the next
            one as the last part of its result. Leave it out where the forward makes its own zeros.
        time_axis: axis of the example along which steps follow each other; by default it is found by experiment.
        precision: ``"float32"``, ``"int8"`` (weights and activations), ``"int8-weights"``, or a mapping from patterns
            of layer names to these; what no pattern matches stays in float32. Weights that are int8 already stay so.

    Returns:
        A :class:`Stream` in the state before the first step.

    Raises:
        ValueError: the model cannot be streamed; the message names the module, the operation and the reason.
    """
    inputs = checked_inputs(model, example)
    with evaluating(model):
        return _translated(model, inputs, state, time_axis, precision)


def _translated(
    model: nn.Module, inputs: Sequence[Tensor], state: Any, time_axis: int | None, precision: Any
) -> Stream:
    call = understand(model, inputs, state, time_axis)
    choice = Precisions("float32")
    program = translate(call, choice)
    call = check_sequence(call, program)
    reference = call.reference()
    worst = difference(reference, _outputs(program, call, len(reference)))
    limit = INT8_TOLERANCE if any(report.precision == "int8" for report in choice.reports.values()) else TOLERANCE
    if not worst.relative <= limit:
        raise _unlike(call, worst)
    if precision != "float32":
        choice = Precisions(precision)
        program = translate(call, choice)
        choice.check_patterns()
        worst = difference(reference, _outputs(program, call, len(reference)))
    return Stream(program, choice.reports.values(), worst.relative)


def _outputs(program: Program, call: Call, steps: int) -> list[dict[str, Tensor]]:
    """Return the outputs of a program for the sequence of a call."""
    runner = ReferenceStream(program)
    return [runner.step(step_inputs(call, min(step, call.steps - 1))) for step in range(steps)]


def _unlike(call: Call, worst: Difference) -> ValueError:
    return ValueError(
        f"{type(call.model).__name__} cannot be streamed: one step at a time its output {worst.output} differs from "
        f"its forward over a sequence by {worst.absolute:.3g} at step {worst.step} ({worst.relative:.2g} of the "
        "largest output). A part of it depends on more than the step and the states of its layers. A loop or scan of "
        "yours over time needs register_step(), or a forward that takes its state and returns the next one (state=); "
        "means and norms over time cannot be streamed"
    )


class Stream:
    """A model that runs one step at a time, with its state. :func:`stream` and :func:`load_stream` make one.

    Several streams in several threads may share one set of weights (:meth:`clone`); one stream serves one thread at a
    time. A NaN in the input goes into outputs and state, as in torch; :meth:`reset` removes it.
    """

    def __init__(self, program: Program, reports: Any = (), error: float = 0.0) -> None:
        self.program = program
        self.layers: tuple[LayerReport, ...] = tuple(reports)
        self.error = error
        """Largest difference from the model's own forward over the example, relative to the largest output."""
        self._runner = ReferenceStream(program)
        self._names = [*program.inputs, *program.tokens]

    @property
    def inputs(self) -> dict[str, int]:
        """Number of values of every input; of a token, the number of ids."""
        vectors = {name: value.size for name, value in self.program.inputs.items()}
        return vectors | {name: token.count for name, token in self.program.tokens.items()}

    @property
    def outputs(self) -> dict[str, int]:
        """Number of values of every output."""
        return {name: value.size for name, value in self.program.outputs.items()}

    def __call__(self, *inputs: Any) -> Any:
        """Run one step: a vector (or token id) for every input to one for every output."""
        if len(inputs) != len(self._names):
            raise TypeError(f"the stream takes {len(self._names)} inputs ({', '.join(self._names)}), not {len(inputs)}")
        results = self._runner.step(dict(zip(self._names, map(self._checked, self._names, inputs), strict=True)))
        values = tuple(results.values())
        return values[0] if len(values) == 1 else values

    def _checked(self, name: str, x: Any) -> Any:
        if name in self.program.tokens:
            count = self.program.tokens[name].count
            if isinstance(x, bool) or not hasattr(x, "__index__"):
                raise TypeError(f"input {name} is a token id, an integer, not {type(x).__name__}")
            if not 0 <= int(x) < count:
                raise IndexError(f"token {int(x)} is out of range: input {name} has {count}")
            return int(x)
        size = self.program.inputs[name].size
        if not isinstance(x, Tensor):
            x = torch.from_numpy(np.ascontiguousarray(x))
        if not x.is_floating_point():
            raise TypeError(f"input {name} holds floating-point numbers, not {x.dtype}")
        if x.numel() != size:
            raise ValueError(f"input {name} has {size} numbers, not {x.numel()}")
        return x.detach().to(torch.float32)

    def run(self, *sequences: Any) -> Any:
        """Run many steps: sequences (steps x numbers, or token ids) to sequences of outputs."""
        steps = {len(sequence) for sequence in sequences}
        if len(steps) != 1:
            raise ValueError(f"all sequences need the same number of steps, not {sorted(steps)}")
        results = [self(*inputs) for inputs in zip(*sequences, strict=True)]
        if len(self.outputs) == 1:
            return torch.stack(results) if results else torch.empty(0, *self.outputs.values())
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    def reset(self) -> None:
        """Return to the state before the first step."""
        self._runner.reset()

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the state, by the names of its parts."""
        return self._runner.state()

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state that :meth:`state` returned."""
        expected = {name: state.value.size for name, state in self.program.states.items()}
        actual = {name: tensor.numel() for name, tensor in state.items()}
        if expected != actual:
            raise ValueError(f"the state has the parts {expected} (name: size), not {actual}")
        self._runner.set_state(state)

    def clone(self) -> Stream:
        """Return another stream in the same state, with the same weights in memory."""
        other = Stream(self.program, self.layers, self.error)
        other.set_state(self.state())
        return other

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {size}" for name, size in self.inputs.items())
        results = ", ".join(f"{name}: {size}" for name, size in self.outputs.items())
        return f"Stream({sizes} -> {results}; {len(self.program.operations)} operations)"
