"""Streams: a model run one step at a time, with its state kept between the steps."""

from __future__ import annotations

import copy
import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selfish_rnn.errors import UserError
from selfish_rnn.runtime.compiled import CompiledProgram, CompiledStream
from selfish_rnn.runtime.precision import LayerPrecision, LayerReport, Precisions
from selfish_rnn.runtime.program import Program
from selfish_rnn.runtime.stored import load_program, save_program
from selfish_rnn.runtime.tracing import UntranslatableError
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

_REPORT = "layers"
"""Entry of the file's metadata with the report on every layer."""

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
    if program.states and call.axis is None and call.state is None:
        raise UntranslatableError(
            "the forward takes no sequence that is longer than the example, so the state that its layers keep cannot "
            "be checked: pass time_axis=, or a state that the forward takes and returns (state=)"
        )
    call = check_sequence(call, program)
    reference = call.reference()
    result = Stream(program, choice.reports.values())
    worst = difference(reference, _outputs(result, call, len(reference)))
    limit = INT8_TOLERANCE if any(report.precision == "int8" for report in choice.reports.values()) else TOLERANCE
    if not worst.relative <= limit:
        raise _unlike(call, worst)
    if precision != "float32":
        choice = Precisions(precision)
        program = translate(call, choice)
        choice.check_patterns()
        result = Stream(program, choice.reports.values())
        worst = difference(reference, _outputs(result, call, len(reference)))
    result.error = worst.relative
    result.reset()
    return result


def _outputs(stream: Stream, call: Call, steps: int) -> list[dict[str, Tensor]]:
    """Return the outputs of a stream for the sequence of a call."""
    results = []
    for step in range(steps):
        inputs = step_inputs(call, min(step, call.steps - 1))
        values = stream(*(inputs[name] for name in stream.inputs))
        results.append(dict(zip(stream.outputs, values if isinstance(values, tuple) else (values,), strict=True)))
    return results


def _unlike(call: Call, worst: Difference) -> UntranslatableError:
    return UntranslatableError(
        f"{type(call.model).__name__} cannot be streamed: one step at a time its output {worst.output} differs from "
        f"its forward over a sequence by {worst.absolute:.3g} at step {worst.step} ({worst.relative:.2g} of the "
        "largest output). A part of it depends on more than the step and the states of its layers. A loop or scan of "
        "yours over time needs register_step(), or a forward that takes its state and returns the next one (state=); "
        "means and norms over time cannot be streamed"
    )


def load_stream(path: str | os.PathLike[str]) -> Stream:
    """Open a stream that :meth:`Stream.save` wrote.

    The file is checked before it is used, and nothing in it is executed. A damaged file, or one of a newer format, is a
    :class:`~selfish_rnn.UserError`.
    """
    program = load_program(path)
    try:
        report = json.loads(program.metadata.pop(_REPORT, "{}"))
        layers = [LayerReport(**{**layer, "shape": tuple(layer["shape"])}) for layer in report.get("layers", [])]
        error = float(report.get("error", 0.0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as damage:
        raise UserError(f"{path} is damaged: its report on layers cannot be read") from damage
    return Stream(program, layers, error)


class Stream:
    """A model that runs one step at a time, with its state. :func:`stream` and :func:`load_stream` make one.

    ::

        y = stream(x)                    # float32 vector in, float32 vector out; the next call continues
        ys = stream.run(xs)              # steps x numbers
        state = stream.state()           # by name, to continue later: stream.set_state(state)
        other = stream.clone()           # the same weights in memory, a state of its own

    Streams of one set of weights may run in several threads at once; one stream serves one thread at a time. A NaN in
    the input goes into outputs and state, as in torch; :meth:`reset` removes it. After an error the state is unchanged.
    """

    def __init__(self, program: Program, layers: Iterable[LayerReport] = (), error: float = 0.0) -> None:
        self.program = program
        self.layers: tuple[LayerReport, ...] = tuple(layers)
        """Shape, precision and rounding error of every matrix."""
        self.error = error
        """Largest difference from the model's own forward over the example, relative to the largest output."""
        self._compiled = CompiledProgram.of(program)
        self._set_up(self._compiled.stream())

    def _set_up(self, runner: CompiledStream) -> None:
        compiled = self._compiled
        self._runner, self._run_at = runner, runner.run_at
        self._sizes, self._counts = list(compiled.inputs.values()), list(compiled.tokens.values())
        self._names = [*compiled.inputs, *compiled.tokens]
        self._output_sizes = list(compiled.outputs.values())
        self._input_size, self._output_size = sum(self._sizes), sum(self._output_sizes)
        self._only_vector = len(self._sizes) == 1 and not self._counts
        self._only_token = len(self._counts) == 1 and not self._sizes
        self._one_output = len(self._output_sizes) == 1
        self._tokens = torch.zeros(max(1, len(self._counts)), dtype=torch.int32)
        self._token_address, self._token_numbers = self._tokens.data_ptr(), self._tokens.numpy()

    @property
    def inputs(self) -> dict[str, int]:
        """Number of values of every input; of a token, the number of ids."""
        return self._compiled.inputs | self._compiled.tokens

    @property
    def outputs(self) -> dict[str, int]:
        """Number of values of every output."""
        return dict(self._compiled.outputs)

    # Running

    def __call__(self, *inputs: Any) -> Any:
        """Run one step: a vector (or token id) for every input, in their order, to a vector for every output."""
        y = torch.empty(self._output_size)
        x = y
        if self._only_vector and len(inputs) == 1:
            x = inputs[0]
            plain = type(x) is Tensor and x.dtype is torch.float32 and x.is_contiguous() and x.is_cpu
            if not plain or x.numel() != self._input_size:
                x = self._vector(x, 0)
        elif self._only_token and len(inputs) == 1:
            self._token_numbers[0] = self._token(inputs[0], 0)
        elif len(inputs) != len(self._names):
            raise self._wrong_number(len(inputs))
        else:
            count = len(self._sizes)
            vectors = [self._vector(vector, at) for at, vector in enumerate(inputs[:count])]
            tokens = [self._token(token, at) for at, token in enumerate(inputs[count:])]
            self._token_numbers[: len(tokens)] = tokens
            x = torch.cat(vectors) if vectors else y
        self._run_at(self._token_address, x.data_ptr(), y.data_ptr())
        return y if self._one_output else torch.split(y, self._output_sizes)

    def run(self, *sequences: Any) -> Any:
        """Run many steps: sequences (steps x numbers, or token ids) to sequences of outputs (steps x numbers)."""
        if len(sequences) != len(self._names):
            raise self._wrong_number(len(sequences))
        if len({len(sequence) for sequence in sequences}) != 1:
            raise ValueError(
                f"sequences need the same number of steps, not {[len(sequence) for sequence in sequences]}"
            )
        steps, vectors = len(sequences[0]), []
        for at, sequence in enumerate(sequences[: len(self._sizes)]):
            numbers = _floats(sequence, self._names[at])
            if numbers.numel() != steps * self._sizes[at]:
                size, shape = self._sizes[at], tuple(numbers.shape)
                raise ValueError(f"input {self._names[at]} has {size} numbers in every step, the sequence is {shape}")
            vectors.append(numbers.reshape(steps, self._sizes[at]))
        x = torch.cat(vectors, 1).contiguous() if vectors else torch.empty(0)
        ids = [[self._token(token, at) for token in part] for at, part in enumerate(sequences[len(self._sizes) :])]
        tokens = torch.tensor(ids, dtype=torch.int32).T.contiguous() if ids else self._tokens
        y = torch.empty(steps, self._output_size)
        strides = 4 * len(ids), 4 * self._input_size, 4 * self._output_size
        at_tokens, at_x, at_y = tokens.data_ptr(), x.data_ptr(), y.data_ptr()
        for _ in range(steps):
            self._run_at(at_tokens, at_x, at_y)
            at_tokens, at_x, at_y = at_tokens + strides[0], at_x + strides[1], at_y + strides[2]
        return y if self._one_output else torch.split(y, self._output_sizes, 1)

    def _vector(self, x: Any, at: int) -> Tensor:
        numbers = _floats(x, self._names[at])
        if numbers.numel() != self._sizes[at]:
            raise ValueError(f"input {self._names[at]} has {self._sizes[at]} numbers, not {numbers.numel()}")
        return numbers.reshape(-1).contiguous()

    def _token(self, token: Any, at: int) -> int:
        name, count = self._names[len(self._sizes) + at], self._counts[at]
        try:
            if isinstance(token, bool) or (isinstance(token, Tensor) and token.dtype == torch.bool):
                raise TypeError
            number = operator.index(token)
        except TypeError:
            raise TypeError(f"input {name} is a token id, one integer, not {token!r:.60}") from None
        if not 0 <= number < count:
            raise IndexError(f"token {number} is out of range: input {name} has {count}")
        return number

    def _wrong_number(self, count: int) -> TypeError:
        return TypeError(f"the stream takes {len(self._names)} inputs ({', '.join(self._names)}), not {count}")

    # State

    def reset(self) -> None:
        """Return to the state before the first step."""
        self._runner.reset()

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the state, by the names of its parts."""
        return {name: torch.from_numpy(part.copy()) for name, part in self._runner.state().items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state that :meth:`state` returned."""
        self._runner.set_state({name: part.detach().to("cpu", torch.float32).numpy() for name, part in state.items()})

    def clone(self) -> Stream:
        """Return another stream in the same state, with the same weights in memory."""
        stream = Stream.__new__(Stream)
        stream.program, stream.layers, stream.error = self.program, self.layers, self.error
        stream._compiled = self._compiled
        stream._set_up(self._runner.clone())
        return stream

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program and its weights to one file, which :func:`load_stream`, C and C++ read.

        The state is not part of it: a loaded stream begins before the first step.
        """
        report = {"layers": [asdict(layer) for layer in self.layers], "error": self.error}
        program = copy.copy(self.program)
        program.metadata = {**program.metadata, _REPORT: json.dumps(report)}
        save_program(program, path)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {size}" for name, size in self.inputs.items())
        results = ", ".join(f"{name}: {size}" for name, size in self.outputs.items())
        return f"Stream({sizes} -> {results}; {len(self.program.operations)} operations)"


def _floats(x: Any, name: str) -> Tensor:
    """Return numbers as a float32 tensor, or raise an error if they are not floating-point numbers."""
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if array.dtype.kind != "f":
            raise TypeError(f"input {name} holds floating-point numbers, not {array.dtype} ({type(x).__name__})")
        x = torch.from_numpy(np.ascontiguousarray(array))
    if not x.is_floating_point():
        raise TypeError(f"input {name} holds floating-point numbers, not {x.dtype}")
    numbers: Tensor = x.detach().to("cpu", torch.float32)
    return numbers
