"""Names of matrices as the paper writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from selfish_rnn.topology.gates import WHOLE

_KINDS = {"ih": "ih", "hh": "hh", "hr": "hr", "input": "ih", "recurrent": "hh"}
_PATTERN = re.compile(r"(?:.*?\.(\d+)\.|.*\.)?weight_(ih|hh|hr|input|recurrent)(?:_l(\d+))?(_\d+|_reverse)?")


def short_names(names: Sequence[str]) -> list[str]:
    """``ih`` and ``hh`` for input and recurrent matrices with the number of their layer; equal ones stay whole.

    >>> short_names(["rnn.weight_ih_l0", "rnns.1.weight_hh_l0", "cell.weight_recurrent_3", "decoder.weight"])
    ['ih1', 'hh2', 'hh3', 'decoder']
    """
    short = [_short(name) for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def _short(name: str) -> str:
    found = _PATTERN.fullmatch(name)
    if found is None:
        return name.removesuffix(".weight")
    module, kind, layer, more = found.groups()
    number = "" if layer is None and module is None else str(1 + int(layer or 0) + int(module or 0))
    return f"{_KINDS[kind]}{number}{(more or '').replace('_', '' if not number else ' ')}"


def gate_name(gate: str) -> str:
    """A gate as people write it: ``master forget``, and ``whole matrix`` for the one that is all of it."""
    return "whole matrix" if gate == WHOLE else gate.replace("_", " ")
