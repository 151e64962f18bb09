"""Parameters of packed weights, and checks of the optimizers that hold them."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils import _python_dispatch

from selfish_rnn.topology.layout import stored_keys


class Owner(Protocol):
    """Packed weight that values belong to."""

    def order_checksum(self) -> int: ...


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

    owner: weakref.ref[Owner] | None = None
    """Packed weight that the values belong to."""

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


def mark_values(values: Tensor | None, owner: Owner, shape: tuple[int, int], checksum: int | None) -> None:
    """Make a parameter the values of a packed matrix; without a checksum their order is unknown."""
    if type(values) in (nn.Parameter, PackedValues, OrderedTensor):
        marked = _as_packed_values(values, shape, None if checksum is None else Order(shape, checksum))
        marked.owner = weakref.ref(owner)


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


class ReadOnlyMatrix(DerivedTensor):
    """A copy that refuses changes, because they would be lost."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch; refuse one that writes into the copy. Views of it are read-only, too."""
        kwargs = kwargs or {}
        name = str(getattr(function, "__name__", ""))
        outputs = kwargs.get("out", ())
        changed = [*args[:1]] if _writes(name) else []
        changed += outputs if isinstance(outputs, list | tuple) else [outputs]
        if any(isinstance(tensor, ReadOnlyMatrix) for tensor in changed):
            raise RuntimeError(  # a TypeError would let Python try another operator for +=
                f"{name} would change a copy: `data` of a packed or int8 weight, or its tensors in a state_dict. "
                "Change the existing weights by weight.values, or all by weight.assign(positions, values) or "
                "load_state_dict; initialize before packing; average packed models with selfish_rnn.AveragedModel"
            )
        with torch._C.DisableTorchFunctionSubclass():
            copies = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, ReadOnlyMatrix)]
            result = function(*args, **kwargs)
            # A function of a list of copies, such as cat or stack, returns memory of its own.
            return _protected(result, copies[0].untyped_storage().data_ptr()) if copies else result


def read_only(matrix: Tensor) -> Tensor:
    """Return a matrix that refuses to be changed."""
    return matrix.detach().as_subclass(ReadOnlyMatrix)


_last_saved: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[Any], str]] = weakref.WeakKeyDictionary()
"""The ``state_dict`` that a sparse weight was last saved in, and its prefix there."""


def save_once(
    weight: nn.Module, destination: dict[str, Any], prefix: str, tensors: Callable[[str], Mapping[str, Tensor]]
) -> None:
    """Put the tensors of a sparse weight into a ``state_dict``: of a tied weight the same ones under all its names."""
    reference, first = _last_saved.get(weight, (None, prefix))
    name = prefix.removesuffix(".")
    if reference is not None and reference() is destination and first != prefix:
        tied = {key[len(first) :]: destination[key] for key in stored_keys(destination, first.removesuffix("."))}
        destination.update({prefix + ending: tensor for ending, tensor in tied.items()})
        return
    destination.update(tensors(name))
    with contextlib.suppress(TypeError):  # a plain dict has no weak references
        _last_saved[weight] = weakref.ref(destination), prefix


_HARMLESS = frozenset({"detach_", "requires_grad_", "share_memory_"})


def _writes(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__") and name not in _HARMLESS)


def _protected(result: Any, memory: int) -> Any:
    """Make read-only what lies in this memory."""
    if isinstance(result, numpy.ndarray) and result.ctypes.data:
        result.flags.writeable = False
    if isinstance(result, list | tuple) and any(isinstance(item, Tensor) for item in result):
        protected = [_protected(item, memory) for item in result]
        return type(result)(protected) if type(result) in (list, tuple) else result
    if type(result) is Tensor and result.layout is torch.strided and result.untyped_storage().data_ptr() == memory:
        return read_only(result)
    return result


_seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_train_packed: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_train_whole_matrices: weakref.WeakSet[Optimizer] = weakref.WeakSet()


ORDERS = "packed_orders"
"""Key of a parameter group in a saved state: the order of the values of each packed weight, as a checksum."""


def _record_orders(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Record in a ``state_dict`` which order of values the state has; one that was loaded and not used has a record."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        if _packed_count(group):
            saved.setdefault(ORDERS, [_order_checksum(parameter) for parameter in group["params"]])


def check_orders(optimizer: Optimizer) -> None:
    """Raise an error if a state was loaded whose values are not those of the packed weights, position by position."""
    for group in optimizer.param_groups:
        for parameter, saved in zip(group["params"], group.get(ORDERS, ()), strict=False):
            if saved is not None and saved != _order_checksum(parameter):
                rows, columns = getattr(parameter, "matrix_shape", parameter.shape)
                raise RuntimeError(
                    f"the loaded state of {type(optimizer).__name__} is of other positions of a packed {rows} x "
                    f"{columns} matrix: load the state_dict of the model that was saved with it. If that is loaded, "
                    "the state comes from a version whose kernels have another order: make a new optimizer"
                )
        group.pop(ORDERS, None)


def _order_checksum(parameter: Tensor) -> int | None:
    reference = parameter.owner if isinstance(parameter, PackedValues) else None
    owner = None if reference is None else reference()
    return None if owner is None else owner.order_checksum()


def _check_groups(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Check a loaded state; warn once, before the first step of an optimizer."""
    check_orders(optimizer)
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    optimizer.register_state_dict_post_hook(_record_orders)
    packed = [group for group in optimizer.param_groups if _packed_count(group)]
    if packed:
        _warn_about_decay(optimizer, packed)
    _warn_about_whole_matrices(optimizer, packed)


def _packed_count(group: Mapping[str, Any]) -> int:
    return sum(isinstance(parameter, PackedValues) for parameter in group["params"])


def _warn_about_decay(optimizer: Optimizer, packed: list[dict[str, Any]]) -> None:
    decayed = [group for group in optimizer.param_groups if float(group.get("weight_decay", 0)) > 0]
    if decayed and not any(group in packed for group in decayed):
        warnings.warn(
            f"{type(optimizer).__name__} decays other parameters, but no weight of the "
            f"{sum(map(_packed_count, packed))} packed matrices, which are in groups with weight_decay=0. Code that "
            "sorts parameters by ndim takes packed weights for biases, since their values are one-dimensional: sort "
            "by selfish_rnn.is_matrix(parameter)",
            stacklevel=4,
        )


def _warn_about_whole_matrices(optimizer: Optimizer, packed: list[dict[str, Any]]) -> None:
    """Warn if the usual split by dimensions keeps packed weights from Muon."""
    whole = [group for group in optimizer.param_groups if group.get("use_muon", _is_muon(optimizer))]
    if whole and not any(map(_packed_count, whole)):
        _train_whole_matrices.add(optimizer)
    if packed:
        _train_packed.add(optimizer)
    if optimizer in _train_whole_matrices | _train_packed and _train_whole_matrices and _train_packed:
        classes = sorted({type(trainer).__name__ for trainer in _train_packed})
        warnings.warn(
            "Muon takes matrices of two dimensions and the values of packed weights are one-dimensional: they are "
            f"trained by {' and '.join(classes)}, as biases are. To train them by Muon, keep the model masked: do not "
            "call pack",
            stacklevel=4,
        )


def _is_muon(optimizer: Optimizer) -> bool:
    return "muon" in type(optimizer).__name__.lower()


register_optimizer_step_pre_hook(_check_groups)
