"""The parameter of a packed weight, which carries the order of its values and refuses to be mixed with another order.

A rewiring changes the order of the values, so arithmetic between the values of two topologies is meaningless: an
average by ``zip(parameters())`` would blend unrelated positions. The parameter stays an ``nn.Parameter`` with torch's
fast paths. Tensors derived from it outside a graph (``data``, ``detach()``, ``clone()``) carry the order along.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch


class Order(NamedTuple):
    """Identity of the order in which the values of a packed matrix are stored."""

    shape: tuple[int, int]
    checksum: int


class DerivedTensor(Tensor):
    """A tensor that is pickled and shown as a plain one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = copied = self.clone()
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = plain(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        return reduced

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(plain(self))


class OrderedTensor(DerivedTensor):
    """Values outside a graph, in the order of a topology."""

    order: Order | None = None

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        set_data(self, values)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch; refuse arithmetic between two orders."""
        kwargs = kwargs or {}
        name = _operation(function)
        if name in _MIXING:
            _check_orders(name, (*args, *kwargs.values()))
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
            if name in _KEEPING and type(result) is Tensor and (name == "clone" or not result.requires_grad):
                order = next((tensor.order for tensor in _ordered((*args, *kwargs.values()))), None)
                result = _tagged(result, order)
        return result


class PackedValues(nn.Parameter):
    """The values of a :class:`~selfish_rnn.engine.PackedWeight`: one-dimensional, but weights of a matrix."""

    is_matrix: bool = True
    """Tells code that sorts parameters that these are weights of a matrix, although ``ndim`` is 1."""

    matrix_shape: tuple[int, int]
    """Rows and columns of the matrix."""

    order: Order | None

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        _check_orders("data", (self, values))
        set_data(self, values)

    def detach(self) -> Tensor:
        detached = Tensor.detach(self)
        return detached if _traced() else _tagged(detached, self.order)

    def clone(self, **kwargs: Any) -> Tensor:
        cloned = Tensor.clone(self, **kwargs)
        return cloned if _traced() else _tagged(cloned, self.order)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedValues:
        values = nn.Parameter(Tensor.detach(self).clone(memory_format=torch.preserve_format), self.requires_grad)
        memo[id(self)] = copied = _as_packed_values(values, self.matrix_shape, self.order)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as an ordinary parameter, which the packed weight it belongs to marks again."""
        return torch._utils._rebuild_parameter, (Tensor.detach(self), self.requires_grad, OrderedDict())


def mark_values(values: Tensor | None, shape: tuple[int, int], checksum: int | None) -> None:
    """Make a parameter the values of a packed matrix; without a checksum their order is unknown."""
    if type(values) in (nn.Parameter, PackedValues, OrderedTensor):
        _as_packed_values(values, shape, None if checksum is None else Order(shape, checksum))


def is_matrix(parameter: Tensor) -> bool:
    """Return whether a parameter holds the weights of a matrix, packed or not.

    Use it in place of ``parameter.ndim >= 2``, which is false for packed weights:

    >>> decay = [p for p in model.parameters() if is_matrix(p)]
    >>> others = [p for p in model.parameters() if not is_matrix(p)]
    >>> optimizer = torch.optim.AdamW([{"params": decay}, {"params": others, "weight_decay": 0.0}], weight_decay=0.1)
    """
    return parameter.ndim >= 2 or getattr(parameter, "is_matrix", False) is True


def plain(tensor: Tensor) -> Tensor:
    """Return an ordinary tensor with the same memory."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def set_data(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor other memory, as ``tensor.data = values`` does."""
    with torch._C.DisableTorchFunctionSubclass():
        torch._C.TensorBase.data.__set__(tensor, plain(values))  # type: ignore[attr-defined]


def _as_packed_values(values: Any, shape: tuple[int, int], order: Order | None) -> PackedValues:
    # The class of the object changes and not the object: optimizers and other modules may hold it already.
    values.__class__ = PackedValues
    values.matrix_shape, values.order = shape, order
    marked: PackedValues = values
    return marked


def _traced() -> bool:
    """Return whether torch looks at operations itself, and expects plain tensors."""
    return torch.compiler.is_compiling() or bool(_python_dispatch.is_in_torch_dispatch_mode())


def _tagged(tensor: Tensor, order: Order | None) -> Tensor:
    if order is None:
        return tensor
    tagged = tensor.as_subclass(OrderedTensor)
    tagged.order = order
    return tagged


# Arithmetic

_MIXING = frozenset({"add", "copy", "data", "iadd", "isub", "lerp", "radd", "rsub", "sub", "subtract"})
"""Operations that are meaningless between values of two orders."""

_KEEPING = (_MIXING - {"data"}) | {
    *("clone", "contiguous", "cpu", "detach", "div", "double", "float", "itruediv", "imul", "mul", "multiply", "rmul"),
    *("to", "truediv"),
}
"""Operations whose result has the order of their operands."""


def _operation(function: Callable[..., Any]) -> str:
    """Return the name of an operation: ``lerp`` for ``torch.lerp``, ``Tensor.lerp_`` and ``torch._foreach_lerp_``."""
    return str(getattr(function, "__name__", "")).strip("_").removeprefix("foreach_")


def _ordered(operands: Sequence[Any]) -> Iterator[OrderedTensor | PackedValues]:
    for operand in operands:
        if isinstance(operand, _CARRIERS) and operand.order is not None:
            yield operand


def _check_orders(operation: str, operands: Sequence[Any]) -> None:
    """Raise an error if the operands, or those at one place of several lists of operands, have different orders."""
    lists = [operand for operand in operands if isinstance(operand, list | tuple)]
    for together in zip(*lists, strict=False):
        _check_orders(operation, together)
    orders = [tensor.order for tensor in _ordered(operands)]
    for order in orders[1:]:
        if order != orders[0]:
            rows, columns = order.shape  # type: ignore[union-attr]
            raise RuntimeError(
                f"{operation} of the values of two packed weights whose topologies differ ({rows} x {columns}): after "
                "a rewiring equal places hold weights of different positions. Average packed models with "
                "selfish_rnn.blend_ or selfish_rnn.AveragedModel, copy them with load_state_dict, and compare "
                "weights with to_dense()"
            )


_CARRIERS = (OrderedTensor, PackedValues)


def _in_place(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    @functools.wraps(function)
    def method(self: PackedValues, *args: Any, **kwargs: Any) -> Any:
        if type(args[0] if args else None) in _CARRIERS:
            _check_orders(_operation(function), (self, args[0]))
        return function(self, *args, **kwargs)

    return method


def _out_of_place(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    @functools.wraps(function)
    def method(self: PackedValues, *args: Any, **kwargs: Any) -> Any:
        outside = not torch.is_grad_enabled() and not _traced()
        return function(self.detach() if outside else self, *args, **kwargs)

    return method


for _name in ("__iadd__", "__isub__", "add_", "copy_", "lerp_", "sub_", "subtract_"):
    setattr(PackedValues, _name, _in_place(_name))
for _name in (
    *("__add__", "__mul__", "__radd__", "__rmul__", "__rsub__", "__sub__", "__truediv__"),
    *("add", "div", "lerp", "mul", "multiply", "sub", "subtract"),
):
    setattr(PackedValues, _name, _out_of_place(_name))
