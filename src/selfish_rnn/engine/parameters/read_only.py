"""Dense copies of sparse matrices for code that reads ``module.weight.data``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from selfish_rnn.engine.parameters.packed_values import DerivedTensor


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
                f"{name} would change `data` of a packed or int8 weight, which is a dense copy: change the existing "
                "weights by weight.values, or all by weight.assign(positions, values), or initialize before packing"
            )
        with torch._C.DisableTorchFunctionSubclass():
            memory = next(each for each in (*args, *kwargs.values()) if isinstance(each, ReadOnlyMatrix))
            return _protected(function(*args, **kwargs), memory.untyped_storage().data_ptr())


def read_only(matrix: Tensor) -> Tensor:
    """Return a matrix that refuses to be changed."""
    return matrix.detach().as_subclass(ReadOnlyMatrix)


_HARMLESS = frozenset({"detach_", "requires_grad_", "share_memory_"})


def _writes(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__") and name not in _HARMLESS)


def _protected(result: Any, memory: int) -> Any:
    """Make read-only what lies in this memory."""
    if isinstance(result, numpy.ndarray) and result.ctypes.data:
        result.flags.writeable = False
    if isinstance(result, list | tuple) and any(isinstance(each, Tensor) for each in result):
        protected = [_protected(each, memory) for each in result]
        return type(result)(protected) if type(result) in (list, tuple) else result
    if type(result) is Tensor and result.layout is torch.strided and result.untyped_storage().data_ptr() == memory:
        return read_only(result)
    return result
