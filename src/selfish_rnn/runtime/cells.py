"""Translations of recurrent layers and cells, and the registry for those of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.engine.modules.cells import PackedRecurrentCell
from selfish_rnn.engine.modules.recurrent import PackedRecurrent
from selfish_rnn.runtime.program import Value
from selfish_rnn.runtime.tracing import Trace, Translator

State = Tensor | Sequence["State"] | None
Step = Callable[..., tuple[Any, State]]

MODULES: dict[type[nn.Module], Translator] = {}
"""Translations of whole modules: functions of the trace, the module and the arguments of its forward."""


def translates(*modules: type[nn.Module]) -> Callable[[Translator], Translator]:
    """Register a function as the translation of whole modules: of the trace, the module and its arguments."""

    def register(translator: Translator) -> Translator:
        MODULES.update(dict.fromkeys(modules, translator))
        return translator

    return register


def register_step(cell: type[nn.Module], step: Step, state: Callable[[Any], State]) -> None:
    """Register the step of your own cell for :func:`~selfish_rnn.stream`.

    A cell that loops over time, or scans it at once, hides its state from one step to the next. ``step`` computes the
    same for one step, in torch, with the state in the open:

    >>> def step(cell, h, x, *rest):              # x: what the forward gets, of one step and one sequence
    ...     z, candidate = cell.gates(x).chunk(2, -1)
    ...     h = torch.lerp(h, candidate, z.sigmoid())
    ...     return h, h                           # what the forward returns, and the next state
    >>> register_step(MinimalCell, step, state=lambda cell: torch.zeros(cell.hidden))

    Cells that take their state as an argument and return the next one need no registration.

    Args:
        cell: class of the module; its subclasses are included.
        step: takes the module, the state and the arguments of the forward; returns the forward's result and the next
            state.
        state: takes the module and returns the state before the first step, a tensor or a tuple of tensors.
    """

    def translator(trace: Trace, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with trace.pause():
            before = _map(state(module), lambda tensor: tensor.detach().to(torch.float32).clone())
        values = []
        for tensor in _leaves(before):
            values.append(trace.keep_state(tensor, "state"))
            trace.bind(tensor, values[-1])
        result, after = step(module, before, *args, **kwargs)
        tensors = list(_leaves(after))
        if [tensor.numel() for tensor in tensors] != [value.size for value in values]:
            shapes = [tuple(tensor.shape) for tensor in tensors]
            raise trace.refuse("its registered step", f"the next state has the shapes {shapes}, not those of the first")
        for value, tensor in zip(values, tensors, strict=True):
            trace.program.set_state(value, trace.vector(tensor))
        return result

    translates(cell)(translator)


def _leaves(state: State) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif state is not None:
        for part in state:
            yield from _leaves(part)


def _map(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if state is None or isinstance(state, Tensor):
        return None if state is None else function(state)
    return tuple(_map(part, function) for part in state)


def module_translator(module: nn.Module) -> Translator | None:
    """Return the translation of a whole module, if there is one."""
    return next((MODULES[kind] for kind in type(module).__mro__ if kind in MODULES), None)


# Layers of torch and their packed counterparts


def linear(trace: Trace, weight: Any, x: Value, bias: Tensor | None = None, vectors: int = 1) -> Value:
    """Add the product of a weight of a module with a value."""
    matrix, activations = trace.matrix(weight)
    shift = None if bias is None else bias.detach()
    name = trace.weight_name(weight)
    return trace.program.linear(matrix, x, shift, activations=activations, vectors=vectors, name=name)


def recurrent_layer(
    trace: Trace,
    kind: str,
    x: Value,
    weights: Sequence[Any],
    states: Sequence[Tensor | None],
    hidden: int,
    suffix: str = "",
) -> list[Value]:
    """Add one step of a layer and return its next states, h first.

    Args:
        kind: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.
        weights: the matrices and biases of input and recurrence (W, R, w, r), and of an LSTM the projection or None.
        states: h, and of an LSTM c, as they enter; None for zeros.
        suffix: end of the names of the states.
    """
    program = trace.program
    w, r, input_bias, recurrent_bias, projection = weights
    outputs = hidden if projection is None else projection.shape[0]
    h, keeps_h = trace.entering(states[0], outputs, f"h{suffix}")
    sums = [linear(trace, w, x, input_bias), linear(trace, r, h, recurrent_bias)]
    if kind == "lstm":
        c, keeps_c = trace.entering(states[1], hidden, f"c{suffix}")
        after, c_after = program.lstm_cell(sums[0], sums[1], c)
        if keeps_c:
            program.set_state(c, c_after)
        if projection is not None:
            after = linear(trace, projection, after)
        results = [after, c_after]
    elif kind == "gru":
        results = [program.gru_cell(sums[0], sums[1], h)]
    else:
        results = [program.rnn_cell(sums[0], sums[1], "tanh" if kind == "rnn_tanh" else "relu")]
    if keeps_h:
        program.set_state(h, results[0])
    return results


def _layers(trace: Trace, func: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.lstm`` and its siblings: all layers over a sequence."""
    names = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
    arguments = dict(zip(names, args, strict=False)) | kwargs
    x, kind, layers = arguments["input"], func.__name__, arguments["num_layers"]
    if not isinstance(arguments["params"], list | tuple):
        raise trace.refuse(kind, "packed sequences cannot be streamed; pass a tensor")
    if arguments["bidirectional"]:
        raise trace.refuse(kind, "it is bidirectional, so its output needs the steps that are still to come")
    _check_one_step(trace, kind, x)
    with trace.pause():
        results = tuple(tensor.clone() for tensor in func(*args, **kwargs))
    entering = arguments["hx"] if isinstance(arguments["hx"], list | tuple) else [arguments["hx"]]
    per_layer = len(arguments["params"]) // layers
    value, lasts = trace.vector(x), list[list[Value]]()
    for layer in range(layers):
        weights = list(arguments["params"][layer * per_layer : (layer + 1) * per_layer])
        biases = [weights.pop(2), weights.pop(2)] if arguments["has_biases"] else [None, None]
        projection = weights.pop() if len(weights) == 3 else None
        states = [tensor[layer] for tensor in entering]
        hidden = entering[-1].shape[-1]
        lasts.append(recurrent_layer(trace, kind, value, [*weights, *biases, projection], states, hidden, f"_l{layer}"))
        value = lasts[-1][0]
    _bind_results(trace, results[0], results[1:], lasts)
    return results


def _bind_results(trace: Trace, output: Tensor, finals: Sequence[Tensor], lasts: Sequence[Sequence[Value]]) -> None:
    """Let the output of a recurrent module hold that of its last layer, and its last states those of all layers."""
    trace.bind(output, lasts[-1][0])
    for layer, values in enumerate(lasts):
        for tensor, value in zip(finals, values, strict=True):
            trace.bind(tensor[layer], value)


def _check_one_step(trace: Trace, kind: str, x: Tensor) -> None:
    if x.ndim != 3 or x.shape[0] != 1 or x.shape[1] != 1:
        raise trace.refuse(kind, f"its input has the shape {tuple(x.shape)} in one step; it needs 1 x 1 x features")


def _cell(trace: Trace, func: Any, x: Tensor, hx: Any, w: Tensor, r: Tensor, *biases: Any, **named: Any) -> Any:
    """``torch.lstm_cell`` and its siblings."""
    passed = (*biases, named.get("b_ih"), named.get("b_hh"))[:2]
    kind = func.__name__.removesuffix("_cell")
    with trace.pause():
        results = func(x, hx, w, r, *passed)
    tensors = [tensor.clone() for tensor in (results if isinstance(results, tuple) else (results,))]
    states = list(hx) if isinstance(hx, list | tuple) else [hx]
    values = recurrent_layer(trace, kind, trace.vector(x), [w, r, *passed, None], states, states[-1].shape[-1])
    for tensor, value in zip(tensors, values, strict=True):
        trace.bind(tensor, value)
    return tuple(tensors) if isinstance(results, tuple) else tensors[0]


FUNCTIONS: dict[Any, Translator] = {
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _layers),
    **dict.fromkeys((torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell), _cell),
}
"""Translations of functions of torch that the dispatcher would divide."""


@translates(PackedRecurrent)
def _packed_layers(trace: Trace, module: PackedRecurrent, x: Any, state: Any = None) -> Any:
    if not isinstance(x, Tensor):
        raise trace.refuse("its forward", "packed sequences cannot be streamed; pass a tensor")
    batched = x.unsqueeze(1) if x.ndim == 2 else x
    _check_one_step(trace, module.mode.lower(), batched)
    with trace.pause():
        output, last = module.original_forward(x, state)
    lstm = module.cell == "lstm"
    output, finals = output.clone(), [tensor.clone() for tensor in (last if lstm else (last,))]
    entering: Sequence[Any] = (state if lstm else (state,)) if state is not None else (None, None)[: 1 + lstm]
    value, lasts = trace.vector(x), list[list[Value]]()
    for layer in range(module.num_layers):
        end = f"_l{layer}"
        weights = [getattr(module, f"weight_{name}{end}") for name in ("ih", "hh")]
        biases = [module._bias(f"bias_{name}{end}") for name in ("ih", "hh")]
        projection = getattr(module, f"weight_hr{end}") if module.proj_size else None
        states = [None if tensor is None else tensor[layer] for tensor in entering]
        arguments = [*weights, *biases, projection]
        lasts.append(recurrent_layer(trace, module.cell, value, arguments, states, module.hidden_size, end))
        value = lasts[-1][0]
    _bind_results(trace, output, finals, lasts)
    return output, tuple(finals) if lstm else finals[0]


@translates(PackedRecurrentCell)
def _packed_cell(trace: Trace, module: PackedRecurrentCell, x: Tensor, state: Any = None) -> Any:
    with trace.pause():
        results = module.original_forward(x, state)
    lstm = module.cell == "lstm"
    tensors = [tensor.clone() for tensor in (results if lstm else (results,))]
    entering = (None, None)[: 1 + lstm] if state is None else state if lstm else (state,)
    weights = [module.weight_ih, module.weight_hh, module.bias_ih, module.bias_hh, None]
    values = recurrent_layer(trace, module.cell, trace.vector(x), weights, entering, module.hidden_size)
    for tensor, value in zip(tensors, values, strict=True):
        trace.bind(tensor, value)
    return tuple(tensors) if lstm else tensors[0]
