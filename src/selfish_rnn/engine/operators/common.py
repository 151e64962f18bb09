"""Common part of the operators: registration, checks, and tensors for the kernels.

The kernels read and write wherever they are told to. Operators check when they run, not when they are traced, so that
compiled programs are as safe.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from selfish_rnn.engine import library
from selfish_rnn.engine.dense_gradients import collect, is_collecting
from selfish_rnn.engine.index import Contents, check_count, contents
from selfish_rnn.engine.parameters import PackedValues
from selfish_rnn.engine.precision import bfloat16_index, operand_rows


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function of the kernels as ``torch.ops.selfish_rnn.<name>``.

    Under autocast its inputs become float32, as torch does with what it computes in float32.
    """

    def register(function: Callable[..., Any]) -> Any:
        registered: Any = torch.library.custom_op(f"selfish_rnn::{name}", function, mutates_args=(), device_types="cpu")
        if hasattr(registered, "register_autocast"):  # since torch 2.7
            registered.register_autocast("cpu", torch.float32)
        registered.direct = function
        register_fake = registered.register_fake
        registered.register_fake = lambda fake: register_fake(_of_one_device(function, fake))
        return registered

    return register


def _of_one_device(function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fake of an operator, which refuses to mix tensors with and without memory.

    Torch calls it as soon as one tensor is on ``meta``, and would take what it returns for computed.
    """

    @functools.wraps(fake)
    def checked(*arguments: Any) -> Any:
        devices: dict[str, str] = {}
        for name, argument in zip(inspect.signature(function).parameters, arguments, strict=False):
            for tensor in argument if isinstance(argument, list) else [argument]:
                if isinstance(tensor, Tensor):
                    devices.setdefault(tensor.device.type, name)
        if "meta" in devices and len(devices) > 1:
            where = " and ".join(f"{name} on {device}" for device, name in devices.items())
            raise TypeError(f"{function.__name__} takes tensors of one device, not {where}: move them together")
        return fake(*arguments)

    return checked


def refuse_second_derivative(ctx: Any, *gradients: Tensor | None) -> NoReturn:
    """Raise an error for a second derivative."""
    raise RuntimeError(
        "the packed engine has no second derivatives (create_graph=True gives the first): unpack(model), or do not "
        "pack it"
    )


class _Once(torch.autograd.Function):
    """Gradient whose dependence on its sources is unknown."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(refuse_second_derivative)


def once_differentiable(gradient: Tensor, *sources: Tensor) -> Tensor:
    """Return a gradient whose derivatives are an error, not zero."""
    if not torch.is_grad_enabled():
        return gradient
    refusing: Tensor = _Once.apply(gradient, *sources)  # type: ignore[no-untyped-call]
    return refusing


def call(registered: Any, *arguments: Any) -> Any:
    """Call an operator; without torch in between, which takes longer than a small product, where nothing needs it.

    What needs it: gradients, autocast, tracing, and tensors that are not plain ones. ``registered.direct`` is then what
    is called, with the same arguments.
    """
    gradients = torch.is_grad_enabled()
    for argument in arguments:
        kind = type(argument)
        if kind in _PLAIN:
            if gradients and argument.requires_grad:
                return registered(*arguments)
        elif kind not in _PLAINER and isinstance(argument, Tensor):
            return registered(*arguments)
    if (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return registered(*arguments)
    return registered.direct(*arguments)


_PLAINER = (type(None), int, str, bool)
_PLAIN = (Tensor, nn.Parameter, PackedValues)


class LayerWeights(NamedTuple):
    """Packed matrices of a recurrent layer, by their names in the structures of the kernels."""

    input_values: Tensor
    input_index: Tensor
    recurrent_values: Tensor
    recurrent_index: Tensor

    def contiguous(self) -> LayerWeights:
        """Return contiguous values."""
        input_values, recurrent_values = contiguous(self.input_values, self.recurrent_values)
        return LayerWeights(input_values, self.input_index, recurrent_values, self.recurrent_index)

    def with_indexes(self) -> dict[str, Tensor]:
        """Return the fields with the indexes of the bfloat16 kernels."""
        indexes = map(bfloat16_index, (self.input_index, self.recurrent_index))
        return {**self._asdict(), **dict(zip(("input_bf16_index", "recurrent_bf16_index"), indexes, strict=True))}

    def check(self, gate_rows: tuple[int, ...], inputs: int, hidden: int) -> None:
        """Raise an error unless the matrices fit these inputs, states and gates."""
        rows = sum(gate_rows)
        check_weight(self.input_values, self.input_index, rows, inputs)
        if not check_weight(self.recurrent_values, self.recurrent_index, rows, hidden).has_gates(gate_rows):
            raise _cut_otherwise(gate_rows)

    def collect(
        self, x: Tensor, h_panels: Tensor, d_input: Tensor, d_recurrent: Tensor, hidden: int, precision: str = "float32"
    ) -> None:
        """Leave the factors of the dense gradients, if they are wanted; the last two are gradients as panels."""
        tokens, rows = x.shape[0] * x.shape[1], contents(self.input_index).rows
        panel_rows = PANEL_ROWS[precision]
        if is_collecting(self.input_index):
            collect(self.input_index, x, panel_rows(d_input, tokens, rows))
        if is_collecting(self.recurrent_index):
            before = panel_rows(h_panels, tokens, hidden)
            collect(self.recurrent_index, before, panel_rows(d_recurrent, tokens, rows))


class LayerGradients(NamedTuple):
    """Gradients of a recurrent layer, by their names in the structures of the kernels."""

    dx: Tensor | None
    dh_first: Tensor | None
    dc_first: Tensor | None
    input_gradients: Tensor | None
    recurrent_gradients: Tensor | None
    bias_gradient: Tensor | None
    recurrent_bias_gradient: Tensor | None

    @staticmethod
    def empty(x: Tensor, weights: LayerWeights, rows: int, hidden: int, needs: list[bool]) -> list[Tensor]:
        """Memory for them, in their order; of no size where not needed."""
        state, values = (x.shape[1], hidden), (weights.input_values.shape, weights.recurrent_values.shape)
        return empty_where_needed(x, [x.shape, state, state, *values, (rows,), (rows,)], needs)


# Tensors


def contiguous(*tensors: Tensor) -> list[Tensor]:
    """Tensors as the kernels take them."""
    prepared = []
    for tensor in tensors:
        if tensor.dtype is not torch.float32:
            raise TypeError(f"the packed engine computes in torch.float32, not in {tensor.dtype}")
        if not tensor.is_cpu:
            raise TypeError(f"the packed engine computes on the CPU, not on {tensor.device}")
        prepared.append(tensor if tensor.is_contiguous() else tensor.contiguous())
    return prepared


def row_numbers(name: str, numbers: Tensor, rows: int) -> Tensor:
    """Tokens or targets as the kernels take them, if they are rows of a packed matrix."""
    if numbers.dtype != torch.int64 or not numbers.is_cpu:
        raise TypeError(f"every {name} must be a torch.int64 on the CPU, not {numbers.dtype} on {numbers.device}")
    count = numbers.numel()
    if count:
        if count == 1:  # the next word
            lowest = highest = int(numbers.item())
        else:
            lowest, highest = (int(bound) for bound in torch.aminmax(numbers))
        if lowest < 0 or highest >= rows:
            wrong = lowest if lowest < 0 else highest
            raise IndexError(f"{name} {wrong} is out of range: the packed matrix has {rows} rows")
    return numbers.contiguous()


def contiguous_if(tensor: Tensor | None) -> Tensor | None:
    """Return a contiguous tensor, or None."""
    return None if tensor is None else contiguous(tensor)[0]


def empty_where_needed(x: Tensor, shapes: Iterable[Sequence[int]], needs: Iterable[bool]) -> list[Tensor]:
    """Memory for gradients: of these shapes, or of no size where not needed."""
    return [x.new_empty(tuple(shape) if need else (0,)) for shape, need in zip(shapes, needs, strict=True)]


def where_needed(tensors: Iterable[Tensor], needs: Iterable[bool]) -> list[Tensor | None]:
    """Return None in place of gradients that are not needed."""
    return [tensor if need else None for tensor, need in zip(tensors, needs, strict=True)]


def wants_gradients(*tensors: Tensor | None) -> bool:
    """Return whether a backward pass through any of these may follow."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def panel_rows(panels: Tensor, columns: int, features: int) -> Tensor:
    """Panels as columns (tokens) x features, in memory of their own."""
    width = library.kernels().selfish_panel_width(columns)
    return panels.view(-1, features, width).transpose(1, 2).reshape(-1, features)[:columns].clone()


PANEL_ROWS = {"float32": panel_rows, "bfloat16": operand_rows}
"""By precision, the function that makes tokens x features of panels."""


# Checks


def check_operands(operands: Tensor, precision: str) -> None:
    """Raise an error unless saved operands have the precision of the kernel that reads them."""
    if operands.dtype != getattr(torch, precision) or not operands.is_cpu or not operands.is_contiguous():
        raise TypeError(f"kept operands must be contiguous, {precision} and on the CPU, not {operands.dtype}")


def check_weight(values: Tensor, index: Tensor, outputs: int, inputs: int) -> Contents:
    """Return the facts of a packed matrix; raise an error unless it has these inputs and outputs."""
    described = contents(index)
    if described.rows != outputs or described.columns != inputs:
        raise ValueError(
            f"inputs of {inputs} features and outputs of {outputs} do not fit a packed matrix of "
            f"{described.rows} rows and {described.columns} columns"
        )
    check_count(values, described.count)
    return described


def check_gates(index: Tensor, gate_rows: tuple[int, ...]) -> None:
    """Raise an error unless the gates are aligned: each thread of a kernel takes the same units of all gates."""
    if not contents(index).has_gates(gate_rows):
        raise _cut_otherwise(gate_rows)


def _cut_otherwise(gate_rows: tuple[int, ...]) -> ValueError:
    return ValueError(f"a recurrent matrix packed with gate_rows={gate_rows} is needed, this one is cut otherwise")


def check_shape(name: str, tensor: Tensor | None, *shape: int) -> None:
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f"the {name} must be of shape {shape}, it is of shape {tuple(tensor.shape)}")


def check_sizes(saved: NamedTuple, sizes: Sequence[int]) -> None:
    """Raise an error unless the tensors saved by a forward pass are those of this window."""
    for name, tensor, size in zip(saved._fields, saved, sizes, strict=True):
        check_shape(f"kept {name}", tensor, size)


def check_together(needs: Sequence[bool], first: int, second: int, what: str) -> None:
    """Raise an error unless both gradients are needed or neither: a kernel makes them in one."""
    if needs[first] != needs[second]:
        raise ValueError(f"the gradients {what} are needed together or not at all")


def window_shape(x: Tensor, hidden: int, *states: Tensor | None) -> dict[str, int]:
    """Return the sizes of a window; raise an error unless it has a step and the states fit. It may have no sequence."""
    if x.ndim != 3:
        raise ValueError(f"a window is steps x batch x features, not of shape {tuple(x.shape)}")
    steps, batch, _ = x.shape
    if steps == 0:
        raise ValueError(f"a window needs at least one step, this one is {steps} x {batch}")
    for state in states:
        check_shape("state", state, batch, hidden)
    return {"steps": steps, "batch": batch, "hidden": hidden}


def check_kept(keep: bool) -> None:
    """Raise an error if the forward pass saved nothing for the backward pass."""
    if not keep:
        raise RuntimeError("this window was run without keeping what its gradients need")
