"""Record of one epoch: the object that training writes and every report reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from selfish_rnn.errors import UserError, plain_reason, short_repr
from selfish_rnn.topology.gates import WHOLE

LARGE = 0.1
"""Magnitude above which a weight counts as large in the paper's figure on NT-ASGD."""

WEIGHTS_ABOVE = f"weights_above_{LARGE:g}"
"""Key of :attr:`EpochRecord.weights_above` in files and events."""

NETWORK_KEYS = ("sparsity", "active_weights", "total_weights", "density")
"""Keys that describe the network of any sparsifier; all others of a description are its own measures."""

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=1e12)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


def _with_whole(gates: Mapping[str, float]) -> Mapping[str, float]:
    if WHOLE not in gates:
        raise ValueError(f"must have a density of {WHOLE!r}")
    return gates


Densities = Mapping[str, Annotated[Mapping[str, Share], AfterValidator(_with_whole)]]
"""Density of every gate by matrix and gate; the gate ``"all"`` is the whole matrix."""

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class AverageRecord:
    """Validation of an additional average after an epoch; of the raw weights until ``averaging`` is true."""

    valid_loss: Number
    averaging: Flag
    valid_perplexity: Number


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """Results of one epoch, and one line of ``metrics.jsonl``.

    Attributes:
        epoch: number of the epoch, from 1.
        step: number of updates of the run so far.
        train_loss: mean loss over the epoch; NaN in records that have only perplexities.
        valid_loss: loss on the validation text; NaN in records that have only perplexities.
        averaging: whether the validation was of an average.
        learning_rate: learning rate of the epoch.
        prune_rate: fraction of the weights that was rewired or pruned after the epoch.
        seconds: training time of the run so far.
        active_weights: number of existing weights in the sparse matrices of the validated network.
        total_weights: number of positions in these matrices.
        density: density of every gate of every sparse matrix.
        weights_above: number of weights of every matrix that are larger than 0.1 in magnitude.
        averages: validation of the additional averages, by name.
        measures: further values that the sparsifier measures, such as the live units of ISS.
    """

    epoch: Count
    step: Count
    train_loss: Number = math.nan
    valid_loss: Number = math.nan
    averaging: Flag = False
    learning_rate: Number = 0.0
    prune_rate: Number = 0.0
    seconds: Seconds
    train_perplexity: Number
    valid_perplexity: Number
    active_weights: Count = 0
    total_weights: Count = 0
    density: Densities = field(default_factory=dict)
    weights_above: Mapping[str, Count] = field(default_factory=dict)
    averages: Mapping[str, AverageRecord] = field(default_factory=dict)
    measures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sparsity(self) -> float:
        """Fraction of positions without a weight."""
        return 1 - self.active_weights / self.total_weights if self.total_weights else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the record as an object of ``metrics.jsonl``.

        The sparsity is written for other readers, and ``averages`` only if there are any.
        """
        content = asdict(self)
        measures, weights_above, averages = (content.pop(key) for key in ("measures", "weights_above", "averages"))
        content |= {"sparsity": self.sparsity, **measures, WEIGHTS_ABOVE: weights_above}
        return {**content, "averages": averages} if averages else content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], source: str) -> EpochRecord:
        """Return the record of an object of ``metrics.jsonl``.

        Args:
            content: the object, as :meth:`to_json` returns it.
            source: place of the object in a file, for messages.

        Raises:
            UserError: if a value is missing or invalid.
        """
        values = {"weights_above" if key == WEIGHTS_ABOVE else key: value for key, value in content.items()}
        measures = {key: values[key] for key in values if key not in _FIELDS and key != "sparsity"}
        values = {key: values[key] for key in values if key in _FIELDS}
        return validated(_EPOCH, {**values, "measures": measures}, source, "delete that line")

    def scalars(self) -> dict[str, float]:
        """Return the values of the record by the flat names of TensorBoard."""
        return {
            "loss/train": self.train_loss,
            "loss/valid": self.valid_loss,
            "perplexity/train": self.train_perplexity,
            "perplexity/valid": self.valid_perplexity,
            **{f"perplexity/valid/{name}": average.valid_perplexity for name, average in self.averages.items()},
            "rewiring/prune_rate": self.prune_rate,
            "rewiring/active_weights": self.active_weights,
            "learning_rate": self.learning_rate,
            **{f"{WEIGHTS_ABOVE}/{name}": count for name, count in self.weights_above.items()},
            **{
                f"density/{name}/{gate}": density
                for name, gates in self.density.items()
                for gate, density in gates.items()
            },
        }


_FIELDS = frozenset(entry.name for entry in fields(EpochRecord)) - {"measures"}
_EPOCH = TypeAdapter(EpochRecord)


def validated(kind: TypeAdapter[Kind], content: Mapping[str, Any], source: str, remedy: str) -> Kind:
    """Return validated content; invalid content is an error that names its source, the key and the remedy."""
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        key = short_repr(".".join(map(str, detail["loc"])))[1:-1]
        reason = plain_reason(detail["msg"])
        raise UserError(f"{source} has no valid {key} ({reason}): {remedy}") from None
