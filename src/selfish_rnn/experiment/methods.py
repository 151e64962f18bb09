"""Methods that a configuration can name."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

from selfish_rnn.experiment.extensions import load_extensions
from selfish_rnn.sparsifier.iss import ISS
from selfish_rnn.topology import DENSE, METHODS, Method

SMALL_DENSE = DENSE.replace(
    name="small-dense", reference="a dense network of the same kind with as many weights as the sparse one"
)

WITHOUT_PARTS: dict[str, Method] = {ISS.name: ISS, SMALL_DENSE.name: SMALL_DENSE}
"""Methods whose parts cannot be replaced.

``iss`` trains a dense network with a group lasso (:class:`~selfish_rnn.sparsifier.iss.IntrinsicSparseStructures`), and
``small-dense`` trains a smaller model (:func:`~selfish_rnn.experiment.small_dense.small_dense`).
"""

CONFIGURABLE_METHODS: Mapping[str, Method] = ChainMap(WITHOUT_PARTS, METHODS)
"""Live view of the method table and of :data:`WITHOUT_PARTS`."""


def method_row(method: Method) -> dict[str, str]:
    """Return the row of a method in the method table, by column heading."""
    names = {kind: name or "none" for kind, name in method.part_names().items()}
    if method.name == ISS.name:
        names["removal"] = "group lasso"
    if method.removal is None:
        names["pool"] = ""
    if not method.rewires:
        names["growth"] = names["redistribution"] = "none"
    return {
        "method": method.name,
        **{kind: names[kind] for kind in ("allocation", "removal", "pool", "growth", "redistribution")},
        "sparse backward": "yes" if method.sparse_backward else "no",
        "own optimizer": "yes" if method.own_optimizer else "no",
        "reference": method.reference,
    }


load_extensions()
