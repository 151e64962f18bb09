"""Packed weight: only the existing weights of a matrix are stored."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.engine import dense_gradients, library
from selfish_rnn.engine.index import (
    build_index,
    check_count,
    check_matrix,
    checked_positions,
    contents,
    fingerprint,
)
from selfish_rnn.engine.library import address
from selfish_rnn.engine.parameters import check_orders, mark_values, plain, read_only, save_once, set_data
from selfish_rnn.sparsifier.optimizer_state import gather_with_fill, move_state
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import trim_if_releasing
from selfish_rnn.topology import ActiveWeights, GateLayout, Rewiring, Topology
from selfish_rnn.topology.layout import POSITIONS, VALUES, key, read_sparse, sparse_tensors, stored_keys

OLD_FORMAT = " (it was saved by a version before layout 1, with the index of its kernels: save it again)"


def saved_whole(shape: tuple[int, int]) -> str:
    """Return the error for a matrix that was saved dense, before packing."""
    return (
        f"is saved as a whole matrix, as it was before pack(model); here it is packed, {shape[0]} x {shape[1]} with "
        "`values` and `positions` of its existing weights. Load first, then pack: model.load_state_dict(...), "
        "sparsifier.load_state_dict(...), pack(model), and make a new optimizer (the saved state of the old one is of "
        "whole matrices, too)"
    )


def packed_weights(model: nn.Module) -> dict[str, PackedWeight]:
    """Return the packed weights of a model by their first names, those of the dense weights."""
    return {name: module for name, module in model.named_modules() if isinstance(module, PackedWeight)}


class PackedWeight(nn.Module, SparseWeight):
    """Existing weights of a matrix: ``values``, a parameter for any optimizer, and ``index``, their positions.

    ::

        weight = PackedWeight.from_dense(matrix)           # its non-zeros exist
        weight = PackedWeight(matrix.shape, positions)     # zeros at these row-major positions
        weight.to_dense(), weight.to_csr()

    ``values`` has one number for each existing weight, in the order the kernels want them. That order changes when
    the matrix is rewired, and arithmetic between values of two orders is refused. ``values.is_matrix`` is true and
    ``values.matrix_shape`` is the shape of the matrix, for code that sorts parameters by their dimensions. ``index``
    (bytes) is a buffer that takes four bytes and a fraction for each weight. It is never saved: a ``state_dict`` has
    the values in the order of their positions, and ``positions`` or ``bits``, as ``docs/format.md`` specifies.

    Args:
        shape: rows and columns.
        positions: sorted row-major positions of the weights that exist.
        values: of these weights, in that order; zeros by default.
        gate_rows: how many rows each gate of a recurrent matrix has; one gate by default.
    """

    precision: str = "float32"
    """Precision of its products: "float32", or "bfloat16" for rounded operands and float32 sums."""

    shape: tuple[int, int]

    _fingerprint: tuple[int, int] | None = None
    """Fingerprint of the index of a copy: see :meth:`__deepcopy__`."""

    def __init__(
        self,
        shape: Sequence[int],
        positions: Tensor,
        values: Tensor | None = None,
        gate_rows: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        rows, columns = shape
        self.shape = (int(rows), int(columns))
        self.gate_rows = (self.shape[0],) if gate_rows is None else tuple(gate_rows)
        check_matrix(*self.shape)
        self.name, self.gates = "", GateLayout.single(self.shape[0])
        if sum(self.gate_rows) != rows or min(self.gate_rows) < 1:
            raise ValueError(f"gates of {self.gate_rows} rows do not fit a matrix of {rows} rows")
        positions = checked_positions(positions, self.shape, values)
        index, order = build_index(positions, self.shape, self.gate_rows)
        self._buffers["index"] = index
        self._non_persistent_buffers_set.add("index")
        start = (
            torch.zeros(len(positions), dtype=torch.float32)
            if values is None
            else values.detach().to(torch.float32)[order]
        )
        self.values = nn.Parameter(start)

    @property
    def index(self) -> Tensor:
        """Positions of the weights, in the form of the kernels: a buffer of bytes."""
        index = self._buffers["index"]
        assert index is not None
        if self._fingerprint is not None and not torch.compiler.is_compiling():
            self._refuse_overwritten(index)
        return index

    def _take_index(self, index: Tensor) -> None:
        self._buffers["index"] = index
        current = self._mark_values()
        if self._fingerprint is not None:
            self._fingerprint = current

    def _mark_values(self) -> tuple[int, int] | None:
        """Let the values carry the order that the index gives them; return the fingerprint of the index."""
        current = fingerprint(self._buffers["index"])
        mark_values(self._parameters.get("values"), self, self.shape, None if current is None else current[0])
        return current

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        self._mark_values()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> PackedWeight:
        applied: PackedWeight = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._mark_values()
        return applied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._mark_values()

    # Forms

    @classmethod
    def from_dense(
        cls, matrix: Tensor, mask: Tensor | None = None, gate_rows: Sequence[int] | None = None
    ) -> PackedWeight:
        """Return the nonzero weights of a matrix, or those inside ``mask``."""
        matrix = matrix.detach()
        positions = (matrix if mask is None else mask).flatten().nonzero().flatten()
        return cls(matrix.shape, positions, matrix.flatten()[positions], gate_rows)

    @classmethod
    def from_csr(cls, matrix: Tensor, gate_rows: Sequence[int] | None = None) -> PackedWeight:
        """Return the stored weights of a ``torch.sparse_csr`` matrix."""
        rows, columns = matrix.shape
        starts = matrix.crow_indices()
        row = torch.repeat_interleave(torch.arange(rows), starts.diff())
        positions, order = (row * columns + matrix.col_indices()).sort()
        return cls(matrix.shape, positions, matrix.values()[order], gate_rows)

    def to_dense(self) -> Tensor:
        """Return the dense matrix; gradients flow back to ``values``."""
        positions, places = self.sorted()
        return self.values.new_zeros(self.shape).flatten().index_put((positions,), self.values[places]).view(self.shape)

    def to_csr(self) -> Tensor:
        """Return a ``torch.sparse_csr`` matrix."""
        positions, places = self.sorted()
        rows, columns = self.shape
        starts = torch.searchsorted(positions, torch.arange(rows + 1) * columns)
        return torch.sparse_csr_tensor(
            starts, positions % columns, self.values[places], self.shape, check_invariants=False
        )

    def sorted(self) -> tuple[Tensor, Tensor]:
        """Return the sorted row-major positions of the weights, and the place of each value in ``values``."""
        index = self.index
        if index.is_meta:
            raise RuntimeError("a packed weight on the meta device has no positions: load weights, then save them")
        index = index.cpu()  # the same tensor where the kernels compute
        described = contents(index)
        if (described.rows, described.columns) != self.shape:
            raise ValueError(
                f"the index of a packed weight is damaged: it is of {described.rows} x {described.columns}, the weight "
                f"of {self.shape[0]} x {self.shape[1]}"
            )
        check_count(self.values, described.count)
        positions = torch.empty(self.count, dtype=torch.int64, device="cpu")
        places = torch.empty(self.count, dtype=torch.int32, device="cpu")
        library.kernels().selfish_index_sorted(address(index), address(positions), address(places))
        return positions, places

    def order_checksum(self) -> int:
        """Return a checksum of the positions in the order of ``values``."""
        positions, places = self.sorted()
        ordered = torch.empty_like(positions).index_copy_(0, places.to(torch.int64), positions)
        return zlib.crc32(ordered.numpy().data)

    @property
    def data(self) -> Tensor:
        """Dense, read-only copy of the matrix, for code that reads ``module.weight.data``."""
        return read_only(self.to_dense())

    @data.setter
    def data(self, matrix: Tensor) -> None:
        raise TypeError(
            "`data` of a packed weight cannot be set: weight.assign(positions, values) takes other weights, "
            "load_state_dict a saved state"
        )

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Functions of torch take no packed weight. That it is known to torch keeps fast paths from trying."""
        raise TypeError(
            f"torch's {getattr(function, '__name__', function)} takes no packed weight: selfish_rnn.engine.functional "
            "has linear and embedding, weight.to_dense() is an ordinary matrix"
        )

    @property
    def density(self) -> float:
        return self.count / (self.shape[0] * self.shape[1])

    def extra_repr(self) -> str:
        rows, columns = self.shape
        return f"{rows} x {columns}, {self.count} weights, density {self.density:.3f}"

    # Change

    @torch.no_grad()
    def assign(self, positions: Tensor, values: Tensor) -> None:
        """Take on other weights: these values at these sorted row-major positions."""
        positions = checked_positions(positions, self.shape, values)
        index, order = build_index(positions, self.shape, self.gate_rows)
        self._take_index(index)
        self._replace_values(values.to(torch.float32)[order])
        self.values.grad = None

    @torch.no_grad()
    def follow(self, source: PackedWeight, fresh: Tensor) -> None:
        """Take on the topology of another weight of the same shape.

        Values stay where both have a weight. Where only ``other`` has one, the value comes from ``fresh``, which has
        the order of ``other.values``.
        """
        if torch.equal(self.index, source.index):
            return
        if (self.shape, self.gate_rows) != (source.shape, source.gate_rows):
            raise ValueError(
                f"a packed weight of {self.shape} with gates of {self.gate_rows} rows cannot follow one of "
                f"{source.shape} with gates of {source.gate_rows} rows"
            )
        before, places_before = self.sorted()
        positions, places = source.sorted()
        ranks = torch.searchsorted(before, positions).clamp_(max=max(len(before) - 1, 0))
        common = before[ranks] == positions if len(before) else torch.zeros(len(positions), dtype=torch.bool)
        values = plain(fresh.detach()).clone()
        values[places[common]] = plain(self.values)[places_before[ranks[common]]]
        self._take_index(source.index.clone())
        self._replace_values(values)
        self.values.grad = None

    @torch.no_grad()
    def change_topology(self, removed: Tensor, grown: Tensor, optimizers: Sequence[Optimizer] = ()) -> None:
        """Remove the weights at some positions and grow others, at zero.

        Both are row-major positions, sorted; a removed one may grow again, and starts anew. What the ``optimizers``
        remember of a weight stays with it, and is fresh for a grown one.
        """
        for optimizer in optimizers:
            check_orders(optimizer)
        after, origin = self._rewired(checked_positions(removed, self.shape), checked_positions(grown, self.shape))
        index, order = build_index(after, self.shape, self.gate_rows)
        self._take_index(index)
        del after
        origin = origin[order]
        del order
        fresh = (origin < 0).nonzero().flatten()
        origin.clamp_(min=0)
        for optimizer in optimizers:
            move_state(optimizer, self.values, origin, fresh)
        self._replace_values(gather_with_fill(self.values.detach(), origin, fresh, 0.0))
        self.values.grad = None

    def _rewired(self, removed: Tensor, grown: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions after a rewiring, and the former place of each value; -1 for a grown weight."""
        positions, places = self.sorted()
        if len(removed):
            ranks = torch.searchsorted(positions, removed)
            if ranks[-1] >= len(positions) or (positions[ranks] != removed).any():
                raise ValueError("a weight that does not exist cannot be removed")
            survives = torch.ones(len(positions), dtype=torch.bool).index_fill_(0, ranks, False)
            positions, places = positions[survives], places[survives]
        at = torch.searchsorted(positions, grown).add_(torch.arange(len(grown)))
        old = torch.ones(len(positions) + len(grown), dtype=torch.bool).index_fill_(0, at, False)
        after = torch.empty(len(old), dtype=torch.int64).index_copy_(0, at, grown).masked_scatter_(old, positions)
        if len(after) > 1 and (after[1:] <= after[:-1]).any():
            raise ValueError("a weight that exists cannot grow")
        return after, torch.full((len(old),), -1, dtype=torch.int32).masked_scatter_(old, places)

    @torch.no_grad()
    def _replace_values(self, values: Tensor) -> None:
        """Set values of another topology; a backward pass through the old one is an error from here on."""
        if values.shape == self.values.shape:
            self.values.copy_(values)
            return
        # Only with the dtype does torch drop what accumulates the gradient, which expects the old number of values.
        set_data(self.values, torch.empty(0, dtype=torch.float64))
        set_data(self.values, values)
        torch.autograd.graph.increment_version(self.values)

    # Under a sparsifier

    @property
    def parameter(self) -> nn.Parameter:
        return self.values

    @property
    def topology(self) -> Topology:
        return Topology(self.shape, self.gates, self.sorted()[0])

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor[self.sorted()[1]]

    def scatter(self, values: Tensor) -> Tensor:
        places = self.sorted()[1]
        return torch.empty(len(places), dtype=values.dtype).index_copy_(0, places.to(torch.int64), values.cpu())

    def load_topology(self, topology: Topology) -> None:
        change = Rewiring.between(self.topology, topology)
        self.change_topology(change.removed_positions, change.grown)

    def existing(self, score: Callable[[], Tensor] | None = None) -> ActiveWeights:
        positions, places = self.sorted()
        gradient = self.values.grad
        values = self.values.detach()[places]
        gradients = None if gradient is None else gradient[places]
        del places
        trim_if_releasing()
        return ActiveWeights(Topology(self.shape, self.gates, positions), values, gradients, score)

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer] = ()) -> None:
        # The index is a new one, and the collected gradient is known by the old.
        self.drop_gradient()
        trim_if_releasing()  # of choosing what goes and what comes
        self.change_topology(rewiring.removed_positions, rewiring.grown, optimizers)

    def collect_gradient(self) -> None:
        dense_gradients.start_collecting(self)

    def stop_collecting(self) -> None:
        dense_gradients.pause_collecting(self)

    def drop_gradient(self) -> None:
        dense_gradients.stop_collecting(self)

    def load_gradient(self, gradient: Tensor) -> None:
        dense_gradients.start_collecting(self)
        dense_gradients.collect(self.index, None, gradient)
        self.stop_collecting()

    @property
    def has_gradient(self) -> bool:
        return dense_gradients.has_collected(self)

    def collected_gradient(self) -> Tensor:
        return dense_gradients.dense_gradient(self)

    def collected_gradient_at(self, positions: Tensor) -> Tensor:
        return dense_gradients.gradient_at(self, positions)

    # Copies and state

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        """Return a copy that detects if its index is overwritten with that of another topology.

        Averaging does so (``torch.optim.swa_utils.AveragedModel``), after it has averaged values whose order is that of
        the topology they belong to: the weights of such a copy are those of no model.
        """
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied._fingerprint = copied._mark_values()
        return copied

    def _refuse_overwritten(self, index: Tensor) -> None:
        assert self._fingerprint is not None
        checksum, version = self._fingerprint
        if index.is_inference() or index._version == version:
            return
        current = fingerprint(index)
        if current is not None and current[0] != checksum:
            raise RuntimeError(
                "this copy of a packed weight was overwritten with the index of another topology, and its values are "
                "of both: average packed models with selfish_rnn.AveragedModel, copy them with load_state_dict"
            )
        self._fingerprint = current

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save the values in the order of their positions; the order of the kernels never leaves the process."""

        save_once(self, destination, prefix, partial(self.tensors, keep_vars=keep_vars))

    def tensors(self, name: str, keep_vars: bool = False) -> dict[str, Tensor]:
        """Return the tensors that store the weight under a name; copies, detached and read-only by default."""
        positions, places = self.sorted()
        values = self.values if keep_vars else plain(self.values.detach())
        tensors = sparse_tensors(name, Topology.plain(self.shape, positions), values[places])
        return tensors if keep_vars else {key: read_only(tensor) for key, tensor in tensors.items()}

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load values of any topology: the index is built anew."""
        name = prefix.removesuffix(".")
        if name in unexpected_keys:  # a matrix of this name; said once, in place of torch's list of keys
            unexpected_keys[:] = [entry for entry in unexpected_keys if entry != name]
            error_msgs.append(f"{name} {saved_whole(self.shape)}")
            return
        stored = stored_keys(state_dict, name)
        if strict:
            unexpected_keys += [entry for entry in state_dict if entry.startswith(prefix) and entry not in stored]
        if not stored:
            missing_keys += [key(name, VALUES), key(name, POSITIONS)] if strict else []
            return
        try:
            positions, values, scales = read_sparse(state_dict, name, self.shape)
        except ValueError as error:
            error_msgs.append(f"{error}{OLD_FORMAT if prefix + 'index' in state_dict else ''}")
            return
        if scales is not None:
            error_msgs.append(f"{name} is saved in int8, here it is packed in {self.dtype}: quantize the model first")
            return
        index, order = build_index(positions, self.shape, self.gate_rows)
        if values.shape != self.values.shape:
            self._replace_values(self.values.new_zeros(len(values)))
        mark_values(self.values, self, self.shape, None)  # what is copied into them comes with its index
        ordered = {prefix + "values": values.to("cpu")[order]}
        super()._load_from_state_dict(
            ordered, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        before = self._buffers["index"]
        self._take_index(index.to(self.values.device))
        dense_gradients.move(before, self._buffers["index"])
