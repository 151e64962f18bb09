"""Warnings about optimizers that treat packed weights as vectors because their values are one-dimensional."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from selfish_rnn.engine.parameters.packed_values import PackedValues

_seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_train_packed: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_train_whole_matrices: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def _check_groups(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Warn once, before the first step of an optimizer."""
    if optimizer in _seen:
        return
    _seen.add(optimizer)
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
        warnings.warn(
            "Muon takes matrices of two dimensions and the values of packed weights are one-dimensional: they are "
            f"trained by {' and '.join(sorted({type(each).__name__ for each in _train_packed}))}, as biases are. To "
            "train them by Muon, keep the model masked: do not call pack",
            stacklevel=4,
        )


def _is_muon(optimizer: Optimizer) -> bool:
    return "muon" in type(optimizer).__name__.lower()


register_optimizer_step_pre_hook(_check_groups)
