"""Weight matrices of any model, dense with zeros, masked or packed, and the density of their gates."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from selfish_rnn.engine import PackedWeight
from selfish_rnn.sparsifier import SparseTraining
from selfish_rnn.sparsifier.hooks import listeners
from selfish_rnn.sparsifier.selection import model_layouts
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.gates import WHOLE

if TYPE_CHECKING:
    from selfish_rnn.training.records import EpochRecord

_KINDS = {"ih": "ih", "hh": "hh", "hr": "hr", "input": "ih", "recurrent": "hh"}
_PATTERN = re.compile(r"(?:.*?\.(\d+)\.|.*\.)?weight_(ih|hh|hr|input|recurrent)(?:_l(\d+))?(_\d+|_reverse)?")


def short_names(names: Sequence[str]) -> list[str]:
    """Return short names: ``ih`` and ``hh`` with the number of the layer. Ambiguous names stay whole.

    >>> short_names(["rnn.weight_ih_l0", "rnns.1.weight_hh_l0", "cell.weight_recurrent_3", "decoder.weight"])
    ['ih1', 'hh2', 'hh3', 'decoder']
    """
    short = [_short(name) for name in names]
    return [brief if short.count(brief) == 1 else name for brief, name in zip(short, names, strict=True)]


def _short(name: str) -> str:
    match = _PATTERN.fullmatch(name)
    if match is None:
        return name.removesuffix(".weight")
    module, kind, layer, suffix = match.groups()
    number = "" if layer is None and module is None else str(1 + int(layer or 0) + int(module or 0))
    return f"{_KINDS[kind]}{number}{(suffix or '').replace('_', '' if not number else ' ')}"


def gate_name(gate: str) -> str:
    """Return the readable name of a gate: ``master forget``, or ``whole matrix`` for ``all``."""
    return "whole matrix" if gate == WHOLE else gate.replace("_", " ")


Hook = Callable[[str, nn.Module, tuple[Any, ...], Any], None]
"""Function of the name of a module, the module, its arguments in their order, and its output."""


@contextlib.contextmanager
def watched(model: nn.Module, hook: Hook) -> Iterator[None]:
    """Call a hook for every call of a module with a weight matrix, with the model in evaluation mode."""
    owners = {name for matrix in weight_matrices(model).values() for name in matrix.owners}
    modes = [(module, module.training) for module in model.modules()]
    handles = [
        module.register_forward_hook(partial(_call, hook, name), with_kwargs=True)
        for name, module in model.named_modules()
        if name in owners and not isinstance(module, PackedWeight)
    ]
    model.eval()
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode


def _call(hook: Hook, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    hook(name, module, (*args, *kwargs.values()), output)


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor in arguments or outputs, the data of a packed sequence, or None."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, PackedSequence):
        return value.data
    if isinstance(value, (tuple, list)):
        return next((tensor for tensor in map(first_tensor, value) if tensor is not None), None)
    return None


@dataclass(frozen=True)
class WeightMatrix:
    """Weight matrix under its first name. ``local`` is its name in ``module``, whose name is ``owner``.

    A weight that several modules share is one matrix, and ``owners`` are the names of all of them.
    """

    name: str
    owners: tuple[str, ...]
    local: str
    module: nn.Module
    weight: nn.Parameter | PackedWeight
    gates: GateLayout
    sparse: SparseWeight | None

    @property
    def owner(self) -> str:
        return self.owners[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def topology(self) -> Topology:
        """Topology of the sparsifier or of the packed weight; otherwise that of the non-zero entries."""
        if self.sparse is not None:
            return self.sparse.topology
        if isinstance(self.weight, PackedWeight):
            return Topology(self.shape, self.gates, self.weight.sorted()[0])
        return Topology.from_mask(self.weight.detach() != 0, self.gates)

    @property
    def count(self) -> int:
        """Number of existing weights."""
        if self.sparse is None and not isinstance(self.weight, PackedWeight) and not self.weight.is_meta:
            return int(self.weight.detach().count_nonzero())
        return self.topology.count


def weight_matrices(model: nn.Module) -> dict[str, WeightMatrix]:
    """The weight matrices of torch's recurrent modules, cells, linear and embedding layers, of registered cells, and
    whatever else the model's sparsifier holds; each by its first name.

    A weight that has just grown is zero and exists all the same: the sparsifier knows, the zeros do not.
    """
    bound = {id(weight.parameter): weight for weight in _bound_weights(model)}
    matrices: dict[int, WeightMatrix] = {}
    registered = model_layouts(model)
    for owner, module in model.named_modules(remove_duplicate=False):
        for local, gates in _layouts(module, registered.get(module, {}), bound).items():
            weight = getattr(module, local, None)
            if not isinstance(weight, (nn.Parameter, PackedWeight)) or len(weight.shape) < 2:
                continue
            name = f"{owner}.{local}" if owner else local
            before = matrices.get(id(weight))
            owners = (owner,) if before is None else (*before.owners, owner)
            if before is not None:
                name, local, module, gates = before.name, before.local, before.module, before.gates
            stored = weight.values if isinstance(weight, PackedWeight) else weight
            matrices[id(weight)] = WeightMatrix(name, owners, local, module, weight, gates, bound.get(id(stored)))
    if not matrices:
        raise ValueError("the model has no weight matrix of a known module; teach its cell with register_cell")
    return {matrix.name: matrix for matrix in matrices.values()}


def topologies_of(model: nn.Module) -> dict[str, Topology]:
    """Return the topology of each matrix of a model, by name."""
    return {name: matrix.topology for name, matrix in weight_matrices(model).items()}


def _layouts(
    module: nn.Module, registered: Mapping[str, GateLayout], bound: Mapping[int, SparseWeight]
) -> dict[str, GateLayout]:
    """Return the gates of the weights of a module by their name in it: registered ones, then those of bound weights."""
    layouts = dict(registered)
    for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if id(parameter) in bound and not isinstance(module, PackedWeight):
            layouts.setdefault(local, bound[id(parameter)].topology.gates)
    return layouts


def _bound_weights(model: nn.Module) -> Iterator[SparseWeight]:
    """Yield the weights of the sparsifiers of a model."""
    for listener in listeners(model):
        if isinstance(listener, SparseTraining):
            yield from listener.weights


Densities = dict[str, dict[str, float]]
"""Density by matrix and gate."""


def gate_densities(model: nn.Module) -> Densities:
    """Return the density of every weight matrix of a model, under ``"all"``, and of each of its gates.

    >>> from selfish_rnn import Sparsifier
    >>> model = nn.GRU(8, 16)
    >>> sparsifier = Sparsifier(model, sparsity=0.75, rewirings=10)
    >>> densities = gate_densities(model)
    >>> list(densities["weight_hh_l0"])
    ['reset', 'update', 'candidate', 'all']
    >>> densities["weight_hh_l0"]["all"]
    0.25

    Existing weights are those of the sparsifier or of packed weights; otherwise the non-zero entries.
    """
    return {name: matrix.topology.densities() for name, matrix in weight_matrices(model).items()}


def with_gates(densities: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Return the densities of the matrices with several gates. A single gate is the whole matrix."""
    return {name: gates for name, gates in densities.items() if len(gates) > 2}


def densities_over_time(records: Iterable[EpochRecord]) -> dict[str, dict[str, list[float]]]:
    """Return the density of every gate of every matrix after each epoch of a run.

    Example::

        densities_over_time(read_run("runs/mine").epochs)["rnn.weight_hh_l0"]["forget"]  # [0.3, 0.2]
    """
    series: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for matrix, gates in record.density.items():
            for gate, density in gates.items():
                series.setdefault(matrix, {}).setdefault(gate, []).append(density)
    return series


def gate_deviations(densities: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the density of each gate less that of its matrix, as a mean over the matrices that have the gate.

    A gate below zero is sparser than average. In the paper these are the forget gates, while candidate and output gates
    are denser.

    >>> gate_deviations({"rnn.weight_hh_l0": {"forget": 0.25, "output": 0.5, "all": 0.375}})
    {'forget': -0.125, 'output': 0.125}
    """
    deviations: dict[str, list[float]] = {}
    for gates in with_gates(densities).values():
        for gate, density in gates.items():
            if gate != WHOLE:
                deviations.setdefault(gate, []).append(density - gates[WHOLE])
    return {gate: sum(values) / len(values) for gate, values in deviations.items()}
