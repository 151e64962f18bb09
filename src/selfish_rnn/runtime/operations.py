"""Translations of torch's operations: each adds what one operation computes to the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.runtime.program import Program, Value
from selfish_rnn.runtime.tracing import CONSTANT, UNKNOWN, Shadow, Trace, Translator

OPERATIONS: dict[str, Translator] = {}
"""Translations of operations by their names in torch's dispatcher, without overloads."""


def operation(*names: str) -> Callable[[Translator], Translator]:
    """Register a function as the translation of operations."""

    def register(translator: Translator) -> Translator:
        for name in names:
            OPERATIONS[name if "." in name else f"aten.{name}"] = translator
        return translator

    return register


# Elementwise operations. Operands are broadcast on their shadows: the program sees vectors of one size, and numbers.


def _operands(trace: Trace, *operands: Any) -> list[Value | float]:
    """Return operands as values of one size; equal constants as a number."""
    shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        *(operand.shape for operand in operands if isinstance(operand, Tensor))
    )
    results: list[Value | float] = []
    for operand in operands:
        if not isinstance(operand, Tensor):
            results.append(float(operand))
            continue
        if not trace.is_traced(operand):
            constants = operand.detach().to(torch.float32).reshape(-1)
            if bool((constants == constants[0]).all()):
                results.append(float(constants[0]))
                continue
        results.append(trace.vector(operand.expand(shape)))
    return results


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "maximum": "maximum", "minimum": "minimum",
}  # fmt: skip


def combine(program: Program, name: str, left: Value | float, right: Value | float) -> Value:
    """Add an elementwise operation of two operands, one of which may be a number."""
    if isinstance(left, float) and isinstance(right, float):
        raise TypeError("one operand must be a value of the program")
    if isinstance(left, float) and name in ("add", "mul", "maximum", "minimum"):
        left, right = right, left
    if isinstance(left, float):
        assert not isinstance(right, float)
        if name == "sub":
            return program.affine(right, -1.0, left)
        left = program.constant(left)
    elif isinstance(right, float):
        if name == "mul":
            return program.multiply(left, right)
        if name in ("add", "sub"):
            return program.add(left, right if name == "add" else -right)
        right = program.constant(right)
    value: Value = getattr(program, _BINARY[name])(left, right)
    return value


@operation("add", "sub", "mul", "div", "maximum", "minimum")
def _binary(trace: Trace, func: Any, x: Any, y: Any, *, alpha: float = 1, rounding_mode: str | None = None) -> Value:
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if rounding_mode is not None:
        raise trace.refuse(f"div(rounding_mode={rounding_mode!r})", "only exact division has a translation")
    left, right = _operands(trace, x, y)
    if alpha != 1:
        right = right * alpha if isinstance(right, float) else trace.program.multiply(right, float(alpha))
    return combine(trace.program, name, left, right)


@operation("rsub")
def _rsub(trace: Trace, func: Any, x: Any, y: Any, alpha: float = 1) -> Value:
    left, right = _operands(trace, y, x)
    if alpha != 1:
        right = right * alpha if isinstance(right, float) else trace.program.multiply(right, float(alpha))
    return combine(trace.program, "sub", left, right)


@operation("addcmul", "addcdiv")
def _addc(trace: Trace, func: Any, x: Tensor, y: Tensor, z: Tensor, *, value: float = 1) -> Value:
    name = "mul" if "addcmul" in func._schema.name else "div"
    base, left, right = _operands(trace, x, y, z)
    if isinstance(left, float) and isinstance(right, float):
        term: Value | float = value * (left * right if name == "mul" else left / right)
    else:
        term = combine(trace.program, name, left, right)
        term = term if value == 1 else trace.program.multiply(term, float(value))
    return combine(trace.program, "add", base, term)


@operation("lerp")
def _lerp(trace: Trace, func: Any, start: Tensor, end: Tensor, weight: Any) -> Value:
    first, last, fraction = _operands(trace, start, end, weight)
    if isinstance(first, float) and isinstance(last, float):
        return combine(trace.program, "add", combine(trace.program, "mul", fraction, last - first), first)
    step = combine(trace.program, "mul", combine(trace.program, "sub", last, first), fraction)
    return combine(trace.program, "add", step, first)


@operation(*("abs", "sqrt", "exp", "log", "square", "tanh", "sigmoid", "relu", "silu", "hardsigmoid", "hardswish"))
def _unary(trace: Trace, func: Any, x: Tensor) -> Value:
    return trace.program.unary(func._schema.name.removeprefix("aten::").removesuffix("_"), trace.vector(x))


@operation("neg")
def _neg(trace: Trace, func: Any, x: Tensor) -> Value:
    return trace.program.negate(trace.vector(x))


@operation("pow")
def _pow(trace: Trace, func: Any, x: Any, exponent: Any) -> Value:
    program = trace.program
    base, power = _operands(trace, x, exponent)
    if isinstance(base, float):
        assert not isinstance(power, float)
        return program.exp(program.multiply(power, math.log(base)))
    if isinstance(power, float) and power in (0.5, -0.5):
        root = program.sqrt(base)
        return root if power > 0 else combine(program, "div", 1.0, root)
    if isinstance(power, float) and power.is_integer() and 1 <= abs(power) <= 8:
        value = base
        for _ in range(int(abs(power)) - 1):
            value = program.multiply(value, base)
        return value if power > 0 else combine(program, "div", 1.0, value)
    # NaN for a negative base, as in torch.
    return program.exp(combine(program, "mul", program.log(base), power))


@operation("reciprocal")
def _reciprocal(trace: Trace, func: Any, x: Tensor) -> Value:
    return combine(trace.program, "div", 1.0, trace.vector(x))


@operation("rsqrt")
def _rsqrt(trace: Trace, func: Any, x: Tensor) -> Value:
    return combine(trace.program, "div", 1.0, trace.program.sqrt(trace.vector(x)))


@operation("log1p", "expm1", "log2", "log10", "exp2")
def _logarithm(trace: Trace, func: Any, x: Tensor) -> Value:
    program, value = trace.program, trace.vector(x)
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name == "log1p":
        return program.log(program.add(value, 1.0))
    if name == "expm1":
        return program.add(program.exp(value), -1.0)
    if name == "exp2":
        return program.exp(program.multiply(value, math.log(2)))
    return program.multiply(program.log(value), 1 / math.log(2 if name == "log2" else 10))


@operation("leaky_relu")
def _leaky_relu(trace: Trace, func: Any, x: Tensor, slope: float = 0.01) -> Value:
    return trace.program.leaky_relu(trace.vector(x), float(slope))


@operation("elu")
def _elu(trace: Trace, func: Any, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    program, value = trace.program, trace.vector(x)
    if input_scale != 1:  # celu: elu of a scaled input, on the negative side only
        negative = program.add(program.exp(program.multiply(program.clamp(value, high=0.0), float(input_scale))), -1.0)
        value = program.add(program.relu(value), program.multiply(negative, float(alpha)))
    else:
        value = program.elu(value, float(alpha))
    return value if scale == 1 else program.multiply(value, float(scale))


@operation("celu")
def _celu(trace: Trace, func: Any, x: Tensor, alpha: float = 1) -> Value:
    return _elu(trace, func, x, alpha, 1, 1 / alpha)  # type: ignore[no-any-return]


@operation("gelu")
def _gelu(trace: Trace, func: Any, x: Tensor, *, approximate: Any = "none") -> Value:
    return trace.program.gelu(trace.vector(x), approximate)


@operation("softplus")
def _softplus(trace: Trace, func: Any, x: Tensor, beta: float = 1, threshold: float = 20) -> Value:
    return trace.program.softplus(trace.vector(x), float(beta), float(threshold))


@operation("hardtanh")
def _hardtanh(trace: Trace, func: Any, x: Tensor, low: float = -1, high: float = 1) -> Value:
    return trace.program.clamp(trace.vector(x), float(low), float(high))


@operation("clamp", "clamp_min", "clamp_max")
def _clamp(trace: Trace, func: Any, x: Tensor, min: Any = None, max: Any = None) -> Value:
    if func._schema.name.removesuffix("_") == "aten::clamp_max":
        min, max = None, min
    value = trace.vector(x)
    for name, limit in (("maximum", min), ("minimum", max)):
        if isinstance(limit, Tensor):
            value = combine(trace.program, name, value, _operands(trace, x, limit)[1])
    low, high = (None if isinstance(limit, Tensor | None) else float(limit) for limit in (min, max))
    if low is None and high is None:
        return value
    return trace.program.clamp(value, -math.inf if low is None else low, math.inf if high is None else high)


@operation("_prelu_kernel")
def _prelu(trace: Trace, func: Any, x: Tensor, weight: Tensor) -> Value:
    return trace.program.prelu(trace.vector(x), weight.detach().expand(x.shape).reshape(-1))


@operation("mish")
def _mish(trace: Trace, func: Any, x: Tensor) -> Value:
    value = trace.vector(x)
    return trace.program.multiply(value, trace.program.tanh(trace.program.softplus(value)))


@operation("log_sigmoid_forward")
def _log_sigmoid(trace: Trace, func: Any, x: Tensor) -> list[Value | None]:
    return [trace.program.unary("log_sigmoid", trace.vector(x)), None]


@operation("glu")
def _glu(trace: Trace, func: Any, x: Tensor, dim: int = -1) -> Value:
    left, right = (trace.vector(half) for half in x.chunk(2, dim))
    return trace.program.multiply(left, trace.program.sigmoid(right))


@operation("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def _batch_norm(trace: Trace, func: Any, x: Tensor, *arguments: Any) -> list[Value | None]:
    weight, bias, mean, variance, *flags = arguments
    if mean is None or ("no_training" not in func._schema.name and flags[0]):
        raise trace.refuse("batch_norm", "it normalizes over the batch; track running statistics and call eval()")
    factor = (variance + flags[-1]).rsqrt()
    factor = factor if weight is None else factor * weight
    shift = (-mean if bias is None else bias / factor - mean) * factor
    shape = (1, -1) + (1,) * (x.ndim - 2)
    value, scale, offset = _operands(trace, x, factor.view(shape), shift.view(shape))
    return [combine(trace.program, "add", combine(trace.program, "mul", value, scale), offset), None, None]


# Reductions and normalizations of each of the vectors along some dimensions.


def _parts(trace: Trace, x: Tensor, dims: Sequence[int]) -> tuple[Value, int, list[int]]:
    """Return the vectors along some dimensions one after another, their number, and the order of dimensions there."""
    reduced = sorted(dim % x.ndim for dim in dims) if x.ndim else []
    order = [dim for dim in range(x.ndim) if dim not in reduced] + reduced
    count = math.prod(x.shape[dim] for dim in order[: x.ndim - len(reduced)])
    return trace.vector(x.permute(order)), count, order


def _in_order(trace: Trace, value: Value, shape: Sequence[int], order: Sequence[int]) -> Shadow:
    """Return the shadow of a tensor of this shape whose numbers a value holds in another order of dimensions."""
    scratch = torch.empty([shape[dim] for dim in order])
    trace.bind(scratch, value)
    return shadow_of(trace, scratch.permute([order.index(dim) for dim in range(len(shape))]))


@operation("sum", "mean")
def _reduce(
    trace: Trace, func: Any, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    if dtype not in (None, torch.float32):
        raise trace.refuse(func._schema.name, f"it computes in {dtype}, a program in float32")
    value, parts, _ = _parts(trace, x, _dimensions(x, dims))
    return trace.program.sum(value, parts) if func._schema.name == "aten::sum" else trace.program.mean(value, parts)


@operation("var", "std")
def _variance(
    trace: Trace, func: Any, x: Tensor, dims: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> Value:
    program = trace.program
    value, parts, _ = _parts(trace, x, _dimensions(x, dims))
    size = value.size // parts
    mean = program.mean(value, parts)
    if parts > 1:
        mean = program.linear(torch.ones(size, 1), mean, vectors=parts)
    spread = program.sum(program.square(program.subtract(value, mean)), parts)
    spread = program.multiply(spread, 1 / max(size - (1 if correction is None else correction), 1e-30))
    return spread if func._schema.name == "aten::var" else program.sqrt(spread)


def _dimensions(x: Tensor, dims: Any) -> Sequence[int]:
    if isinstance(dims, int):
        return [dims]
    return list(dims) if dims else range(x.ndim)


@operation("_softmax", "_log_softmax")
def _softmax(trace: Trace, func: Any, x: Tensor, dim: int, half_to_float: bool = False) -> Shadow:
    value, parts, order = _parts(trace, x, [dim])
    function = trace.program.softmax if func._schema.name == "aten::_softmax" else trace.program.log_softmax
    return _in_order(trace, function(value, parts), x.shape, order)


@operation("native_layer_norm")
def _layer_norm(
    trace: Trace, func: Any, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> list[Any]:
    value, parts, _ = _parts(trace, x, range(x.ndim - len(shape), x.ndim))
    factor, shift = (None if tensor is None else tensor.detach().reshape(-1).repeat(parts) for tensor in (weight, bias))
    return [trace.program.layer_norm(value, factor, shift, eps, parts), None, None]


@operation("_fused_rms_norm")
def _rms_norm(
    trace: Trace, func: Any, x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> list[Any]:
    value, parts, _ = _parts(trace, x, range(x.ndim - len(shape), x.ndim))
    factor = None if weight is None else weight.detach().reshape(-1).repeat(parts)
    return [trace.program.rms_norm(value, factor, torch.finfo(torch.float32).eps if eps is None else eps, parts), None]


# Products with weights.


def product(trace: Trace, weight: Any, x: Tensor, bias: Tensor | None) -> Value:
    """Return ``W x + bias`` of each of the rows of x, one after another."""
    matrix, activations = trace.matrix(weight)
    rows = x.shape[0]
    constant = bias is not None and bias.ndim == 1 and not trace.is_traced(bias)
    shift = bias.detach() if bias is not None and constant else None
    value = trace.program.linear(
        matrix, trace.vector(x), shift, activations=activations, vectors=rows, name=trace.weight_name(weight)
    )
    if bias is None or constant:
        return value
    return trace.program.add(value, trace.vector(bias.expand(rows, weight.shape[0])))


def _matmul(trace: Trace, x: Tensor, y: Tensor, bias: Tensor | None = None) -> Shadow:
    """``x y + bias`` of two matrices, one of which is a weight."""
    scratch = torch.empty(x.shape[0], y.shape[1])
    if trace.is_traced(x):
        trace.bind(scratch, product(trace, y.t(), x, bias))
        return shadow_of(trace, scratch)
    turned = None if bias is None else bias.expand(scratch.shape).t()
    scratch = scratch.t().contiguous()
    trace.bind(scratch, product(trace, x, y.t(), turned))
    return shadow_of(trace, scratch.t())


@operation("mm")
def _mm(trace: Trace, func: Any, x: Tensor, y: Tensor) -> Shadow:
    return _matmul(trace, x, y)


@operation("addmm")
def _addmm(trace: Trace, func: Any, bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Shadow:
    if not trace.is_traced(x) and not trace.is_traced(y):
        raise trace.refuse("addmm", "its product is constant: add it before")
    if beta != 1 or alpha != 1:
        raise trace.refuse("addmm", "beta and alpha other than 1 have no translation")
    return _matmul(trace, x, y, bias)


@operation("mv")
def _mv(trace: Trace, func: Any, matrix: Tensor, x: Tensor) -> Value:
    if trace.is_traced(matrix):
        return product(trace, x.unsqueeze(0), matrix, None)
    return product(trace, matrix, x.unsqueeze(0), None)


@operation("addmv")
def _addmv(
    trace: Trace, func: Any, bias: Tensor, matrix: Tensor, x: Tensor, *, beta: float = 1, alpha: float = 1
) -> Value:
    if beta != 1 or alpha != 1 or trace.is_traced(matrix):
        raise trace.refuse("addmv", "only bias + weight x has a translation")
    return product(trace, matrix, x.unsqueeze(0), bias)


@operation("dot")
def _dot(trace: Trace, func: Any, x: Tensor, y: Tensor) -> Value:
    left, right = _operands(trace, x, y)
    return trace.program.sum(combine(trace.program, "mul", left, right))


@operation("bmm")
def _bmm(trace: Trace, func: Any, x: Tensor, y: Tensor) -> Shadow:
    parts = [_matmul(trace, left, right).parts for left, right in zip(x, y, strict=True)]
    return Shadow(*(torch.stack(part) for part in zip(*parts, strict=True)))


@operation("baddbmm")
def _baddbmm(
    trace: Trace, func: Any, bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1
) -> Shadow:
    if beta != 1 or alpha != 1:
        raise trace.refuse("baddbmm", "beta and alpha other than 1 have no translation")
    shifts = bias.expand(x.shape[0], x.shape[1], y.shape[2])
    parts = [_matmul(trace, *operands[1:], operands[0]).parts for operands in zip(shifts, x, y, strict=True)]
    return Shadow(*(torch.stack(part) for part in zip(*parts, strict=True)))


@operation("selfish_rnn.linear")
def _packed_linear(
    trace: Trace, func: Any, x: Tensor, values: Tensor, index: Tensor, bias: Tensor | None, rows: int
) -> Value:
    return _sparse_linear(trace, x, values, bias)


@operation("selfish_rnn.int8_linear")
def _int8_linear(trace: Trace, func: Any, x: Tensor, windows: Tensor, bias: Tensor | None, rows: int) -> Value:
    return _sparse_linear(trace, x, windows, bias)


def _sparse_linear(trace: Trace, x: Tensor, key: Tensor, bias: Tensor | None) -> Value:
    weight = trace.sparse_weight(key)
    if weight is None:
        raise trace.refuse("a product", "its packed weight is computed in the forward; the model has to own it")
    return product(trace, weight, x.unsqueeze(0).flatten(0, -2), bias)


# Token ids.


@operation("embedding")
def _embedding(trace: Trace, func: Any, weight: Tensor, tokens: Tensor, *_: Any, **__: Any) -> Value:
    return _rows(trace, weight, tokens)


@operation("selfish_rnn.lookup")
def _packed_lookup(trace: Trace, func: Any, tokens: Tensor, values: Tensor, *_: Any) -> Value:
    return _sparse_rows(trace, values, tokens)


@operation("selfish_rnn.int8_lookup")
def _int8_lookup(trace: Trace, func: Any, tokens: Tensor, windows: Tensor, *_: Any) -> Value:
    return _sparse_rows(trace, windows, tokens)


def _sparse_rows(trace: Trace, key: Tensor, tokens: Tensor) -> Value:
    weight = trace.sparse_weight(key)
    if weight is None:
        raise trace.refuse("an embedding", "its packed weight is computed in the forward; the model has to own it")
    return _rows(trace, weight, tokens)


def _rows(trace: Trace, weight: Any, tokens: Tensor) -> Value:
    """Return the rows of a matrix that token ids of the input name, one after another."""
    if isinstance(weight, Tensor) and trace.is_traced(weight):
        raise trace.refuse("embedding", "its matrix depends on the input")
    matrix, _ = trace.matrix(weight)
    return trace.program.embedding(matrix, trace.token(tokens, weight.shape[0]), trace.weight_name(weight))


# Operations that only move numbers: they run on the shadow.

_INDICES = ("index", "indices", "condition", "mask", "shifts")


@operation(
    *("cat", "stack", "clone", "contiguous", "constant_pad_nd", "repeat", "flip", "roll", "index_select", "gather"),
    *(
        "where",
        "masked_fill",
        "tril",
        "triu",
        "select_scatter",
        "slice_scatter",
        "index",
        "index_put",
        "repeat_interleave",
    ),
    *("split_with_sizes_copy", "unbind_copy", "view_copy", "permute_copy", "expand_copy", "slice_copy", "select_copy"),
    *("transpose_copy", "unsqueeze_copy", "squeeze_copy", "diag_embed", "repeat_interleave"),
)
def _move(trace: Trace, func: Any, *args: Any, **kwargs: Any) -> Any:
    table = [argument.name for argument in func._schema.arguments]
    if isinstance(args[0], Tensor) and not trace.is_traced(args[0]) and args[0].ndim == 2:
        # Rows of a constant matrix, as an embedding has them.
        if func._schema.name == "aten::index" and len(args[1]) == 1:
            return _rows(trace, args[0], args[1][0])
        if func._schema.name == "aten::index_select" and args[1] == 0:
            return _rows(trace, args[0], args[2])

    def run(part: int) -> Any:
        positional = [replaced(value, name, part) for value, name in zip(args, table, strict=False)]
        named = {name: replaced(value, name, part) for name, value in kwargs.items() if name != "memory_format"}
        return func(*positional, **named)

    def replaced(value: Any, name: str, part: int) -> Any:
        if isinstance(value, list | tuple):
            return [replaced(item, name, part) for item in value]
        if not isinstance(value, Tensor):
            return 0 if name == "value" else value
        origin = trace.origin(value)
        if name in _INDICES:
            if origin is not None:
                raise trace.refuse(func._schema.name, "its indices or conditions depend on the input")
            return value
        return torch.zeros(value.shape, dtype=torch.int64) if origin is None else origin[part].clone()

    sources, positions = run(0), run(1)
    if isinstance(sources, Tensor):
        return Shadow(sources, positions)
    return [Shadow(*pair) for pair in zip(sources, positions, strict=True)]


@operation(
    *("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"),
    *("new_empty_strided", "empty_strided", "scalar_tensor"),
)
def _constant(trace: Trace, func: Any, *_: Any, **__: Any) -> None:
    """A tensor of the shape or type of another, but not of its numbers."""


@operation("_to_copy")
def _to_copy(trace: Trace, func: Any, x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Shadow:
    changes = dtype is not None and dtype != x.dtype
    if changes and (x.is_floating_point() or torch.empty(0, dtype=dtype).is_floating_point()):
        raise trace.refuse(f"to({dtype})", "a program computes in float32")
    return shadow_of(trace, x)


@operation("copy")
def _copy(trace: Trace, func: Any, target: Tensor, x: Tensor, *_: Any, **__: Any) -> Shadow:
    return Shadow(*(part.expand(target.shape) for part in shadow_of(trace, x).parts))


@operation("fill", "zero")
def _fill(trace: Trace, func: Any, target: Tensor, value: Any = 0) -> Shadow:
    shadow = shadow_of(trace, value if isinstance(value, Tensor) else torch.zeros(()))
    return Shadow(*(part.expand(target.shape) for part in shadow.parts))


def shadow_of(trace: Trace, x: Tensor) -> Shadow:
    origin = trace.origin(x)
    if origin is None:
        zeros = torch.zeros(x.shape, dtype=torch.int64)
        return Shadow(zeros, zeros)
    return Shadow(*(part.clone() for part in origin))


@operation(*("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "eq", "ne", "lt", "le", "gt", "ge", "isnan"))
def _branch(trace: Trace, func: Any, *_: Any) -> Any:
    name = func._schema.name.removeprefix("aten::")
    raise trace.refuse(name, "its result depends on the input, and every step runs the same program")


# Convolution over time.


@operation("convolution")
def _convolution(
    trace: Trace,
    func: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Shadow:
    """A causal convolution: the program keeps the past inputs that zeros to the left of the step stand for."""
    if weight.ndim != 3 or transposed or stride[0] != 1 or x.shape[0] != 1:
        raise trace.refuse("convolution", "only Conv1d with stride 1 over one sequence has a translation")
    numbers = torch.nn.functional.pad(x[0].detach(), (padding[0], padding[0]))
    shadow = shadow_of(trace, x)
    source, position = (torch.nn.functional.pad(part[0], (padding[0], padding[0])) for part in shadow.parts)
    trace.set_origin(numbers, source, position)
    gap, rows = dilation[0], weight.shape[0]
    reach = gap * (weight.shape[2] - 1)
    length = numbers.shape[1] - reach
    # Columns of the output that no step decides yet stay unknown.
    output = torch.empty(rows, length)
    trace.set_origin(output, torch.full((rows, length), UNKNOWN), torch.zeros(rows, length, dtype=torch.int64))
    columns = (source != CONSTANT).any(0).nonzero().flatten().tolist()
    if len(columns) == 1 and reach:
        newest = columns[0] - reach
        if not 0 <= newest < length:
            reason = f"it looks ahead: pad {reach} steps on the left; drop the last steps if both sides are padded"
            raise trace.refuse("convolution", reason)
        if bool(numbers[:, newest : columns[0]].any()):
            raise trace.refuse("convolution", "the steps before the first one have to be zeros")
        value = _causal(trace, numbers[:, columns[0]], weight, bias, gap, groups)
        trace.bind(output[:, newest], value)
    else:
        matrix = _ungrouped(weight, groups).reshape(rows, -1)
        for column in range(length):
            window = _copied(trace, numbers[:, column : column + reach + 1 : gap])
            trace.bind(output[:, column], product(trace, matrix, window, bias))
    return Shadow(*(part.unsqueeze(0) for part in shadow_of(trace, output).parts))


def _copied(trace: Trace, x: Tensor) -> Tensor:
    """Return the numbers of a tensor, with their shadow, as one row."""
    row = torch.empty(1, x.numel())
    trace.set_origin(row, *(part.reshape(1, -1) for part in shadow_of(trace, x).parts))
    return row.copy_(x.detach().reshape(1, -1))


def _causal(trace: Trace, step: Tensor, weight: Tensor, bias: Tensor | None, gap: int, groups: int) -> Value:
    """Return one step of a convolution whose past the program keeps."""
    program, x = trace.program, trace.vector(step)
    name, shift = trace.weight_name(weight), None if bias is None else bias.detach()
    if groups == x.size == weight.shape[0]:
        return program.conv1d(weight.detach(), x, shift, dilation=gap, groups=groups, name=name)
    kernel = weight.shape[2]
    frames = program.frames(x, kernel, gap, f"{name}.past")
    # Columns run over the frames, the oldest first.
    matrix, activations = trace.matrix(_ungrouped(weight, groups).transpose(1, 2).reshape(weight.shape[0], -1), name)
    return program.linear(matrix, frames, shift, activations=activations, name=name)


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a convolution over all channels, zero between groups."""
    if groups == 1:
        return weight.detach()
    rows, inputs, kernel = weight.shape
    full = weight.new_zeros(groups, rows // groups, groups, inputs, kernel)
    parts = weight.detach().view(groups, rows // groups, inputs, kernel)
    for group in range(groups):
        full[group, :, group] = parts[group]
    return full.view(rows, groups * inputs, kernel)
