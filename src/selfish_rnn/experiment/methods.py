"""What the name of a method means in a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from selfish_rnn.sparsifier.iss import ISS
from selfish_rnn.topology import DENSE, METHODS, Method

SMALL_DENSE = DENSE.replace(
    name="small-dense", reference="a dense network of the same kind with as many weights as the sparse one"
)


@dataclass(frozen=True)
class ConfiguredMethod:
    """A method that can be configured: a composition of parts, or a dense network under something else.

    ``group_lasso``: a penalty in the loss lets whole units die
    (:class:`~selfish_rnn.sparsifier.iss.IntrinsicSparseStructures`). ``smaller_model``: the model is made smaller
    before it is trained (:func:`~selfish_rnn.experiment.small_dense.small_dense`).
    """

    method: Method
    group_lasso: bool = False
    smaller_model: bool = False

    @property
    def has_parts(self) -> bool:
        """Whether it is a composition of parts, each of which can be replaced."""
        return not self.group_lasso and not self.smaller_model

    def row(self) -> dict[str, str]:
        """Its row in the method table, by the headings of the columns."""
        method = self.method
        names = {kind: name or "none" for kind, name in method.part_names().items()}
        if self.group_lasso:
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


_WITHOUT_PARTS = {
    ISS.name: ConfiguredMethod(ISS, group_lasso=True),
    SMALL_DENSE.name: ConfiguredMethod(SMALL_DENSE, smaller_model=True),
}


class _ConfiguredMethods(Mapping[str, ConfiguredMethod]):
    """The method table as it is when it is looked at, and what is no composition of parts."""

    def __getitem__(self, name: str) -> ConfiguredMethod:
        return ConfiguredMethod(METHODS[name]) if name in METHODS else _WITHOUT_PARTS[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*METHODS, *_WITHOUT_PARTS))

    def __len__(self) -> int:
        return len(METHODS) + len(_WITHOUT_PARTS)


CONFIGURED_METHODS: Mapping[str, ConfiguredMethod] = _ConfiguredMethods()
