"""The units of a recurrent layer, and the weights that belong to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn


@dataclass(frozen=True)
class UnitPart:
    """The share that the units of a layer have in one parameter.

    Along ``axis`` the parameter is ``blocks`` times as long as the layer has units, and in every block the k-th entry
    is of unit k: of an LSTM's 4H x n matrix unit k has the rows k, H + k, 2H + k and 3H + k. ``reads`` marks the
    columns through which something reads the unit's output; a unit that nothing reads can be left out.
    """

    parameter: nn.Parameter
    axis: int
    blocks: int = 1
    reads: bool = False


@dataclass(frozen=True)
class UnitLayer:
    """A recurrent layer as units that can be left out one by one, each with all the weights that belong to it.

    ``parts`` makes the groups of intrinsic sparse structures (Wen et al. 2018); the ``biases`` of a unit go with it
    but are in no group.
    """

    name: str
    size: int
    parts: tuple[UnitPart, ...]
    biases: tuple[UnitPart, ...] = ()


@runtime_checkable
class DescribesUnits(Protocol):
    """A model that says what its units are, and can be made again with fewer of them."""

    def unit_layers(self) -> list[UnitLayer]: ...

    def resized(self, sizes: Sequence[int]) -> Any: ...
