"""What is compared: the engines of this package, and the rivals a user could pick instead."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

KINDS = {
    "step": "training step",
    "inference": "next word of one text",
    "operators": "products of one matrix",
    "memory": "peak memory of training",
}
"""What is measured, with what it is called."""


@dataclass(frozen=True)
class Engine:
    """One way to compute the same network.

    ``kinds`` are the measurements it takes part in, ``networks`` the networks it can run (empty: all), ``packages``
    what must be installed for it. One that is ``dense`` multiplies every position: the fastest of those measured is the
    baseline. The figure shows the baseline and those that have a ``colour``.
    """

    label: str
    kinds: tuple[str, ...]
    dense: bool = False
    networks: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    colour: str | None = None
    marker: str = "o"

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [package for package in self.packages if find_spec(package) is None]


_LSTM = ("lstm",)

ENGINES: dict[str, Engine] = {
    "dense": Engine("dense torch", tuple(KINDS), dense=True, colour="#555555"),
    "no-onednn": Engine("dense torch without oneDNN", ("step", "inference"), dense=True),
    "bfloat16": Engine("dense bfloat16", ("step", "inference"), dense=True),
    "float16": Engine("dense float16 (quantize_dynamic)", ("inference",), dense=True, networks=_LSTM),
    "int8": Engine("dense int8 (quantize_dynamic)", ("inference",), dense=True, networks=_LSTM),
    "compiled": Engine("dense torch.compile", ("inference",), dense=True, networks=_LSTM),
    "onnx": Engine(
        "dense ONNX Runtime", ("inference",), dense=True, networks=_LSTM, packages=("onnx", "onnxruntime")
    ),
    "onnx-int8": Engine(
        "dense ONNX Runtime int8", ("inference",), dense=True, networks=_LSTM, packages=("onnx", "onnxruntime")
    ),
    "openvino": Engine("dense OpenVINO", ("inference",), dense=True, networks=_LSTM, packages=("onnx", "openvino")),
    "masked": Engine("masked", ("step", "memory"), colour="#d98e04", marker="s"),
    "csr": Engine("torch CSR", ("inference", "operators"), colour="#a83279", marker="^"),
    "sparseprop": Engine("SparseProp", ("operators",), packages=("sparseprop",)),
    "packed": Engine("packed", tuple(KINDS), colour="#1b6ca8"),
}  # fmt: skip
"""By the name that ``--engines`` takes. CSR and SparseProp have no recurrent layers, and outside training a masked
network does what a dense one does."""


def measured(kind: str, network: str) -> list[str]:
    """The engines that a kind of measurement is made of."""
    return [name for name, one in ENGINES.items() if kind in one.kinds and network in (one.networks or (network,))]
