"""Engines to compare: those of this package, and rivals that users could choose instead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec

KINDS = {
    "step": "training step",
    "inference": "next word of one text",
    "operators": "products of one matrix",
    "memory": "peak memory of training",
    "width": "as many weights in a wider network",
    "stream": "one step of one layer",
}
"""Titles of the measurements."""


@dataclass(frozen=True)
class Engine:
    """Implementation of the same network.

    ``kinds`` are its measurements, ``baseline_of`` those in which it is the baseline if it is the fastest candidate.
    ``networks`` are the networks it can run (empty: all), ``packages`` its requirements. ``kernels`` is true if it uses
    the kernels of this package, whose products have a ``precision``. ``tolerance`` is the allowed relative difference
    to dense float32 torch. The figure shows the baseline and the engines with a ``colour``.
    """

    label: str
    kinds: tuple[str, ...]
    baseline_of: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    tolerance: float = 1e-3
    kernels: bool = False
    precision: str = "float32"
    colour: str | None = None
    marker: str = "o"

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [package for package in self.packages if find_spec(package) is None]


def _dense_rival(
    label: str,
    tolerance: float,
    packages: tuple[str, ...] = (),
    networks: tuple[str, ...] = ("lstm",),
    kinds: tuple[str, ...] = ("inference",),
) -> Engine:
    return Engine(label, kinds, kinds, networks, packages, tolerance)


_STEPS = ("inference", "stream")


_ONNX, _OPENVINO = ("onnx", "onnxruntime"), ("onnx", "openvino")

ENGINES: dict[str, Engine] = {
    "dense": Engine(
        "dense torch",
        ("step", "inference", "operators", "memory", "stream"),
        ("step", "inference", "operators", "stream"),
        colour="#555555",
    ),
    "no-onednn": Engine("dense torch without oneDNN", ("step", "inference"), ("step", "inference")),
    # In training it is no baseline: it makes other steps than float32 does.
    "bfloat16": Engine("dense bfloat16", ("step", "inference"), ("inference",), tolerance=0.05),
    "bfloat16-hand": Engine("dense bfloat16 by hand", ("step",), networks=("lstm",), tolerance=0.05),
    "float16": _dense_rival("dense float16 (quantize_dynamic)", 0.01),
    "int8": _dense_rival("dense int8 (quantize_dynamic)", 0.2),
    "compiled": _dense_rival("dense torch.compile", 1e-3, networks=(), kinds=_STEPS),
    "onnx": _dense_rival("dense ONNX Runtime", 1e-3, _ONNX, ("lstm", "gru"), _STEPS),
    "onnx-int8": _dense_rival("dense ONNX Runtime int8", 0.2, _ONNX, ("lstm", "gru"), _STEPS),
    "openvino": _dense_rival("dense OpenVINO", 0.05, _OPENVINO),
    "openvino-int8": _dense_rival("dense OpenVINO, int8 weights", 0.2, (*_OPENVINO, "nncf")),
    "masked": Engine("masked", ("step", "memory"), colour="#d98e04", marker="s"),
    "csr": Engine("torch CSR", ("inference", "operators"), networks=("lstm",), colour="#a83279", marker="^"),
    "sparseprop": Engine("SparseProp", ("operators",), packages=("sparseprop",)),
    "packed": Engine("packed", ("step", "inference", "operators", "memory", "width"), kernels=True, colour="#1b6ca8"),
    "packed-bfloat16": Engine(
        "packed bfloat16", ("step", "memory"), tolerance=0.05, kernels=True, precision="bfloat16", colour="#0b3d66"
    ),
    "packed-call": Engine("packed, one call", ("inference",), kernels=True, colour="#5aa9d6", marker="D"),
    "packed-int8": Engine(
        "packed int8, one call", ("inference",), tolerance=0.2, kernels=True, colour="#2a9d4a", marker="v"
    ),
    "stream-dense": Engine("dense stream", ("stream",), ("stream",), tolerance=math.inf, kernels=True),
    "stream-dense-int8": Engine("dense int8 stream", ("stream",), ("stream",), tolerance=math.inf, kernels=True),
    "stream": Engine("stream", ("stream",), kernels=True),
    "stream-int8": Engine("int8 stream", ("stream",), tolerance=0.2, kernels=True),
}
"""By the name that ``--engines`` takes. CSR and SparseProp have no recurrent layers, and outside training a masked
network does what a dense one does."""


def measured(kind: str, network: str) -> list[str]:
    """Return the engines of a kind of measurement. Products have a matrix instead of a network."""
    return [
        name
        for name, engine in ENGINES.items()
        if kind in engine.kinds and (kind == "operators" or network in (engine.networks or (network,)))
    ]
