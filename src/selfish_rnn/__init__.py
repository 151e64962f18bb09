"""Train recurrent networks that are sparse from the first step to the last."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from selfish_rnn.errors import COMMAND_LINE_MODULES, INSTALL_COMMAND_LINE

__version__ = "0.1.0"

OLDEST_TORCH = (2, 4)


def _refuse_old_torch(version: str) -> None:
    """A torch that is too old would fail somewhere in the middle; here it is said at the door."""
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ImportError(f"selfish-rnn needs torch {oldest} or newer, and this is {version}: pip install -U torch")


# A build of torch without metadata passes; whether there is none at all is said when it is imported.
with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    _refuse_old_torch(importlib.metadata.version("torch"))

if TYPE_CHECKING:
    from selfish_rnn.analysis.distance import topology_distance
    from selfish_rnn.analysis.flops import flops
    from selfish_rnn.analysis.networks import gate_densities
    from selfish_rnn.engine import (
        AveragedModel,
        blend_,
        is_matrix,
        load_packed,
        pack,
        quantize,
        register_packed,
        save_packed,
        unpack,
    )
    from selfish_rnn.errors import UserError
    from selfish_rnn.optim import NTASGD, SNTASGD, AveragedSGD
    from selfish_rnn.runs.experiments import train_experiment
    from selfish_rnn.runs.export import load_model
    from selfish_rnn.runtime import calibrate, load_stream, register_step, stream
    from selfish_rnn.sparsifier import SparseTraining, Sparsifier
    from selfish_rnn.sparsifier.deferred import deferred_init
    from selfish_rnn.sparsifier.iss import IntrinsicSparseStructures, shrink
    from selfish_rnn.sparsifier.selection import register_cell
    from selfish_rnn.topology import (
        DENSE,
        DSR,
        GMP,
        METHODS,
        RIGL,
        SELFISH,
        SET,
        SNFS,
        STATIC,
        STATIC_ER,
        Allocation,
        GateLayout,
        Growth,
        Method,
        Pool,
        Pruning,
        Redistribution,
        Removal,
        Schedule,
        register,
        register_method,
    )

__all__ = [
    "DENSE", "DSR", "GMP", "METHODS", "NTASGD", "RIGL", "SELFISH", "SET", "SNFS", "SNTASGD", "STATIC", "STATIC_ER",
    "Allocation", "AveragedModel", "AveragedSGD", "GateLayout", "Growth", "IntrinsicSparseStructures", "Method", "Pool",
    "Pruning", "Redistribution", "Removal", "Schedule", "SparseTraining", "Sparsifier", "UserError", "blend_",
    "calibrate", "deferred_init", "flops", "gate_densities", "is_matrix", "load_model", "load_packed", "load_stream",
    "pack", "quantize", "register", "register_cell", "register_method", "register_packed", "register_step",
    "save_packed", "shrink", "stream", "topology_distance", "train_experiment",
    "unpack",
]  # fmt: skip

_HOMES = {
    "analysis.distance": ("topology_distance",),
    "analysis.flops": ("flops",),
    "analysis.networks": ("gate_densities",),
    "engine": (
        *("AveragedModel", "blend_", "is_matrix", "load_packed", "pack", "quantize", "register_packed", "save_packed"),
        "unpack",
    ),
    "errors": ("UserError",),
    "optim": ("NTASGD", "SNTASGD", "AveragedSGD"),
    "runs.experiments": ("train_experiment",),
    "runs.export": ("load_model",),
    "runtime": ("calibrate", "load_stream", "register_step", "stream"),
    "sparsifier": ("SparseTraining", "Sparsifier"),
    "sparsifier.deferred": ("deferred_init",),
    "sparsifier.iss": ("IntrinsicSparseStructures", "shrink"),
    "sparsifier.selection": ("register_cell",),
}
"""Where public names come from, if not from ``topology``."""


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: torch takes seconds, which ``--help`` can do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((package for package, names in _HOMES.items() if name in names), "topology")
    try:
        module = importlib.import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if error.name not in COMMAND_LINE_MODULES:
            raise
        raise ImportError(f"{__name__}.{name} needs {error.name}: {INSTALL_COMMAND_LINE}") from error
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
