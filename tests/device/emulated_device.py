"""A device named "testdev" that behaves like a GPU as far as placement and synchronization go.

Its tensors are ordinary ``torch.Tensor`` objects whose data cannot be read by CPU code. Every operation arrives at
one function here, which computes it on the CPU. On the way it does what CUDA does: it refuses tensors of two devices
in one operation, and it counts where the program would have to wait for the device.

:func:`register` changes the process for good, so use it in a process of its own.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "testdev"
DEVICE = torch.device("cpu")
"""The device, once it is registered."""

_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_data: dict[int, torch.UntypedStorage] = {}
"""The numbers of every storage of the device, by its address."""


@dataclass
class Traffic:
    """Operations between two points of a program, and how often the program waited for the device.

    ``reads`` counts by operation what the host has to wait for: values it reads, and outputs whose size depends on
    values. ``writes`` counts copies from the host to the device.
    """

    operations: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    sites: Counter[str] = field(default_factory=Counter)

    @property
    def synchronizations(self) -> int:
        return self.reads.total() + self.writes.total()

    def read(self, op: str) -> None:
        self.reads[op] += 1
        self._note(op)

    def write(self, op: str) -> None:
        self.writes[op] += 1
        self._note(op)

    def _note(self, op: str) -> None:
        lines = [each for each in traceback.extract_stack() if "selfish_rnn" in each.filename]
        if lines:
            self.sites[f"{op} at {lines[-1].filename.rpartition('selfish_rnn/')[2]}:{lines[-1].lineno}"] += 1


_open: list[Traffic] = []


@contextlib.contextmanager
def traffic() -> Iterator[Traffic]:
    """Count the operations and synchronizations of a block."""
    counted = Traffic()
    _open.append(counted)
    try:
        yield counted
    finally:
        _open.remove(counted)


class _Shell(torch.Tensor):
    """A tensor of the device without numbers, from which a plain tensor takes size, strides, storage and device.

    The additional CPU key makes torch treat ``parameter.data = moved`` as it does for CUDA: the parameter stays the
    same object.
    """

    @staticmethod
    def __new__(cls, numbers: Tensor) -> _Shell:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
            storage_size=numbers.untyped_storage().nbytes(),
            _extra_dispatch_keys=_CPU_KEYS,
        )

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten._has_compatible_shallow_copy_type.default:
            return True
        raise AssertionError(f"{op} was called on a tensor that has no numbers")


def _on_device(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.device.type == NAME


def numbers_of(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor of the device, as a CPU tensor that shares them; counts nothing."""
    storage = _data[tensor.untyped_storage()._cdata]
    shared = torch.empty(0, dtype=tensor.dtype)
    return shared.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _tensor_with(numbers: Tensor) -> Tensor:
    """Return a new tensor of the device with these numbers."""
    tensor = torch.empty(0, dtype=numbers.dtype)
    tensor.data = _Shell(numbers)
    _data[tensor.untyped_storage()._cdata] = numbers.untyped_storage()
    return tensor


def _view(tensor: Tensor, numbers: Tensor) -> Tensor:
    """Return a view of a tensor of the device that lies in its storage as ``numbers`` does in the storage below."""
    view = torch.empty(0, dtype=numbers.dtype)
    view.data = torch.ops.aten.as_strided.default.redispatch(
        _CPU_KEYS, tensor, numbers.size(), numbers.stride(), numbers.storage_offset()
    )
    return view


# Operations that CUDA alone has


def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    state = f * cell + i * g
    return o * state.tanh(), state, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hidden: Tensor | None, grad_state: Tensor | None, cell: Tensor, state: Tensor, workspace: Tensor, bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = workspace.chunk(4, 1)
    hidden = torch.zeros_like(state) if grad_hidden is None else grad_hidden
    through = hidden * o * (1 - state.tanh() ** 2)
    if grad_state is not None:
        through = through + grad_state
    gates = torch.cat(
        [
            through * g * i * (1 - i),
            through * cell * f * (1 - f),
            through * i * (1 - g**2),
            hidden * state.tanh() * o * (1 - o),
        ],
        1,
    )
    return gates, through * f, gates.sum(0) if bias else None


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    state: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    reset_in, update_in, new_in = input_gates.chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = hidden_gates.chunk(3, 1)
    reset, update = (reset_in + reset_hidden).sigmoid(), (update_in + update_hidden).sigmoid()
    new = (new_in + reset * new_hidden).tanh()
    return new + update * (state - new), torch.cat([reset, update, new, state, new_hidden], 1)


def _gru_cell_backward(
    grad: Tensor, workspace: Tensor, bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    reset, update, new, state, new_hidden = workspace.chunk(5, 1)
    of_new = grad * (1 - update) * (1 - new**2)
    of_update = grad * (state - new) * update * (1 - update)
    of_reset = of_new * new_hidden * reset * (1 - reset)
    inputs = torch.cat([of_reset, of_update, of_new], 1)
    hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
    return inputs, hidden, grad * update, inputs.sum(0) if bias else None, hidden.sum(0) if bias else None


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    return target.copy_(source)


_own: dict[str, Callable[..., Any]] = {
    "aten::_copy_from": _copy_from,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
}

_indexing = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}


def _count(op: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    """Count the operation, and the waits that it means on a GPU; refuse tensors of two devices."""
    name = op._schema.name
    for counted in _open:
        counted.operations += 1
    if name == "aten::_copy_from":
        source, target = args[:2]
        for counted in _open:
            if not _on_device(target):
                counted.read("copy to the host")
            elif not _on_device(source):
                counted.write("copy to the device")
        return
    strangers = [each for each in tensors if each.ndim and not _on_device(each)]
    if name in _indexing and _on_device(args[0]):
        indices = [each for each in args[1] if each is not None]
        strangers = [each for each in strangers if not any(each is index for index in indices)]
        for index in indices if "index_put" in name else ():  # reading by indices arrives with its copies made
            for counted in _open:
                if index.dtype in (torch.bool, torch.uint8):
                    counted.read(f"{name} by a mask")
                if not _on_device(index):
                    counted.write(f"{name} by indices of the host")
    if strangers:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {op} has some on cpu and on {NAME}")
    waits = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(op.tags)
    returns_values = any("Tensor" not in str(each.type) for each in op._schema.returns)
    if name not in _indexing and (waits or returns_values):
        for counted in _open:
            counted.read(name)


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute an operation for tensors of the device."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    tensors = [each for each in leaves if isinstance(each, Tensor)]
    _count(op, args, tensors)
    generator = kwargs.get("generator")
    if generator is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{generator.device.type}'")
    below: dict[int, tuple[Tensor, Tensor]] = {}
    for tensor in tensors:
        below.setdefault(id(tensor), (tensor, numbers_of(tensor) if _on_device(tensor) else tensor))
    shapes = {key: numbers.shape for key, (_, numbers) in below.items()}

    def replaced(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return below[id(leaf)][1]
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    # The number of a device without a name, as factories receive it, is a torch.device too.
    host_args, host_kwargs = pytree.tree_unflatten([replaced(leaf) for leaf in leaves], structure)
    result = _own.get(op._schema.name, op)(*host_args, **host_kwargs)
    for key, shape in shapes.items():
        tensor, numbers = below[key]
        if numbers.shape != shape:  # an output that the operation has given its size
            tensor.data = _Shell(numbers)
            _data[tensor.untyped_storage()._cdata] = numbers.untyped_storage()
    storages = {numbers.untyped_storage()._cdata: tensor for tensor, numbers in below.values() if _on_device(tensor)}
    same = {id(numbers): tensor for tensor, numbers in below.values()}

    def lifted(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in same:
            return same[id(leaf)]
        origin = storages.get(leaf.untyped_storage()._cdata)
        return _tensor_with(leaf) if origin is None else _view(origin, leaf)

    return pytree.tree_map(lifted, result)


_library: torch.library.Library | None = None


def register() -> torch.device:
    """Make the device known to torch, in this process from now on; return it."""
    global DEVICE, _library
    if _library is None:
        _setup_privateuseone_for_python_backend(NAME)
        DEVICE = torch.device(NAME, 0)
        _library = torch.library.Library("_", "IMPL")
        _library.fallback(_run, "PrivateUse1")
    return DEVICE
