"""Granularity of the chosen weights: the unit that is removed and grown, and diagonals that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from selfish_rnn.errors import nearest
from selfish_rnn.sparsifier.selection import Candidate, matches_name
from selfish_rnn.topology import Method, View, parse_granularity
from selfish_rnn.topology.views import SINGLE

Granularity: TypeAlias = str | tuple[int, int]
"""Rows and columns of a block, as in ``"8x4"`` or ``(8, 4)``; ``"1x1"`` is a single weight."""

RECURRENT = ("*weight_hh*", "*recurrent*")
"""Patterns of the names of recurrent matrices, for ``keep_diagonal=True``."""


def views_of(
    chosen: Sequence[Candidate],
    granularity: Granularity | Mapping[str, Granularity],
    keep_diagonal: bool | str | Sequence[str],
    method: Method,
) -> list[View]:
    """Return the view of every chosen weight; raise if blocks do not divide it, or patterns match nothing."""
    patterns = granularity if isinstance(granularity, Mapping) else {"*": granularity}
    _check_patterns("granularity", [*patterns], chosen)
    blocks = {pattern: parse_granularity(block) for pattern, block in patterns.items()}
    diagonals: Sequence[str] = ()
    if keep_diagonal is True:
        diagonals = RECURRENT
        if not any(matches_name(pattern, candidate.name) for pattern in diagonals for candidate in chosen):
            raise ValueError(
                f"keep_diagonal=True keeps those of the matrices named {' or '.join(RECURRENT)}, and there is none; "
                "give the names of the matrices instead"
            )
    elif keep_diagonal is not False:
        diagonals = [keep_diagonal] if isinstance(keep_diagonal, str) else keep_diagonal
        _check_patterns("keep_diagonal", diagonals, chosen)
    views = []
    for candidate in chosen:
        matching = [block for pattern, block in blocks.items() if matches_name(pattern, candidate.name)]
        included = any(matches_name(pattern, candidate.name) for pattern in diagonals)
        try:
            views.append(View(candidate.shape, candidate.gates, matching[-1] if matching else SINGLE, included))
        except ValueError as error:
            remedy = f'give it a granularity of its own, as in granularity={{"*": "8x4", "{candidate.name}": "1x1"}}'
            raise ValueError(
                f"{candidate.name}: {error}" if included else f"{candidate.name}: {error}; {remedy}"
            ) from None
    if method.moves_between_matrices and len({view.unit_size for view in views}) > 1:
        raise ValueError(
            f"method {method.name!r} moves weights between matrices, so all of them need one granularity, not "
            f"{', '.join(sorted({'x'.join(map(str, view.block)) for view in views}))}"
        )
    return views


def _check_patterns(argument: str, patterns: Sequence[str], chosen: Sequence[Candidate]) -> None:
    names = [candidate.name for candidate in chosen]
    for pattern in patterns:
        if not any(matches_name(pattern, name) for name in names):
            raise ValueError(
                f"{argument}= names {pattern!r}, which matches no sparse weight of the model"
                f"{nearest(pattern, names)}; there are {', '.join(names)}"
            )
