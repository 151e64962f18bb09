"""Optimizers of experiments: their settings, and the one table of them; averages of the iterates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Field, create_model
from torch.optim import SGD, Adam, Optimizer

from selfish_rnn.errors import short_repr
from selfish_rnn.experiment.sections import Beta, Factor, Rate, Section, expand_name
from selfish_rnn.optim import NTASGD, SNTASGD


class LearningRateDrop(Section):
    """Division of the learning rate after more than ``patience`` epochs in a row without improvement."""

    factor: float = Field(gt=1, description="divisor of the learning rate")
    patience: int = Field(ge=0, description="epochs in a row without improvement that are tolerated")


class LearningRateDecay(Section):
    """Division of the learning rate at every epoch after epoch ``after``."""

    factor: float = Field(ge=1, description="divisor of the learning rate")
    after: int = Field(ge=0, description="last epoch with the initial learning rate")


DROP = "divide lr when validation stops improving"


class OptimizerSettings(Section):
    """Settings that all optimizers share.

    All settings except ``name``, ``drop`` and ``decay`` are arguments of the optimizer's constructor.
    """

    name: str
    lr: Rate = Field(description="learning rate")
    weight_decay: Factor = Field(1.2e-6, description="fraction of a weight that is added to its gradient")
    drop: LearningRateDrop | None = Field(None, description=DROP)
    decay: LearningRateDecay | None = Field(None, description="divide lr at every epoch after a given one")


def check_average_start(value: Any) -> Any:
    """Validate the start of an average: an epoch from 1, or a fraction of the run between 0 and 1."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9):
        return value
    if isinstance(value, float) and 0 < value < 1:
        return value
    raise ValueError(
        f"an average starts after a number of epochs (at least 1) or a fraction of them (between 0 and 1), "
        f"got {short_repr(value)}"
    )


def epochs_before(start: float, epochs: int) -> int:
    """Return the number of epochs before averaging starts.

    A fraction of the run is rounded to the nearest epoch between the first and the last but one.

    >>> epochs_before(20, epochs=60), epochs_before(0.5, epochs=60), epochs_before(0.01, epochs=60)
    (20, 30, 1)
    """
    return start if isinstance(start, int) else max(min(int(start * epochs + 0.5), epochs - 1), 1)


class AveragedSettings(OptimizerSettings):
    """Settings of SNT-ASGD and NT-ASGD."""

    name: Literal["snt-asgd", "nt-asgd"]
    lr: Rate = Field(40.0, description="learning rate")
    nonmono: int = Field(
        5,
        ge=0,
        description="start averaging if validation is no better than this many epochs before; epochs with a validation "
        "perplexity of at least 0.9 times the unigram perplexity do not count",
    )
    average_from: Annotated[int | float | None, BeforeValidator(check_average_start)] = Field(
        None,
        description="start averaging after this epoch, with the first update of the next one, or after this fraction "
        "of the epochs (rounded); null: when validation stops improving (`nonmono`)",
    )


class SGDSettings(OptimizerSettings):
    """Settings of plain SGD."""

    name: Literal["sgd"]
    lr: Rate = Field(1.0, description="learning rate")


class MomentumSettings(OptimizerSettings):
    """Settings of SGD with momentum."""

    name: Literal["momentum-sgd"]
    lr: Rate = Field(2.0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="fraction of the last step that is added to the next")
    drop: LearningRateDrop | None = Field(LearningRateDrop(factor=1.33, patience=1), description=DROP)


class AdamSettings(OptimizerSettings):
    """Settings of Adam."""

    name: Literal["adam"]
    lr: Rate = Field(0.001, description="learning rate")
    betas: tuple[Beta, Beta] = Field((0.0, 0.999), description="decay rates of the first and second moments")
    eps: float = Field(1e-9, gt=0, description="constant added to the root of the second moment")
    drop: LearningRateDrop | None = Field(LearningRateDrop(factor=2, patience=2), description=DROP)


@dataclass(frozen=True)
class OptimizerKind:
    """Settings, constructor and properties of an optimizer.

    Attributes:
        settings: section of its settings.
        build: class of the optimizer.
        state_bytes: bytes of optimizer state per weight.
        momentum: whether its state is a momentum that a method can keep for all positions (``kept_by_optimizer``).
    """

    settings: type[OptimizerSettings]
    build: Callable[..., Optimizer]
    state_bytes: int
    momentum: bool = False

    @property
    def averages(self) -> bool:
        """True if the optimizer averages its iterates."""
        return issubclass(self.settings, AveragedSettings)


OPTIMIZERS: dict[str, OptimizerKind] = {
    "snt-asgd": OptimizerKind(AveragedSettings, SNTASGD, state_bytes=8),
    "nt-asgd": OptimizerKind(AveragedSettings, NTASGD, state_bytes=4),
    "sgd": OptimizerKind(SGDSettings, SGD, state_bytes=0),
    "momentum-sgd": OptimizerKind(MomentumSettings, SGD, state_bytes=4, momentum=True),
    "adam": OptimizerKind(AdamSettings, Adam, state_bytes=8, momentum=True),
}
"""Optimizers that experiments can name. A new one is a section of settings and one entry here."""

if TYPE_CHECKING:
    OptimizerSection = OptimizerSettings
else:
    OptimizerSection = Annotated[
        Union[tuple(dict.fromkeys(kind.settings for kind in OPTIMIZERS.values()))],  # noqa: UP007
        BeforeValidator(expand_name),
        Field(discriminator="name"),
    ]


def check_from(value: Any) -> Any:
    """Validate the start of an additional average, which may also be the trigger."""
    if value is None or (isinstance(value, str) and value != "trigger"):
        raise ValueError(f"from must be trigger, an epoch or a fraction, got {short_repr(value)}")
    return value if value == "trigger" else check_average_start(value)


class AverageBase(Section):
    """Kind and name of one of the additional averages of a run; its start is the key ``from``."""

    kind: Literal["snt", "nt"] = Field(
        description="snt: over the values of each weight since it was regrown, as in SNT-ASGD; nt: over all values, as "
        "in NT-ASGD"
    )
    restart: bool = Field(True, description="restart at the epochs of `restart_at`; false: average to the end")

    @property
    def start(self) -> int | float | Literal["trigger"]:
        """Value of ``from``: an epoch, a fraction of the run, or the trigger."""
        start: int | float | Literal["trigger"] = getattr(self, "from")
        return start

    @property
    def name(self) -> str:
        """Name of the average in the files of a run, such as ``nt-20``, ``nt-trigger`` or ``nt-20-no-restart``."""
        return f"{self.kind}-{self.start}{'' if self.restart else '-no-restart'}"


if TYPE_CHECKING:
    AverageSettings = AverageBase
else:
    # A field called from can only be made in a call.
    AverageSettings = create_model(
        "AverageSettings",
        __base__=AverageBase,
        __module__=__name__,
        **{
            "from": (
                Annotated[int | float | Literal["trigger"], BeforeValidator(check_from)],
                Field(
                    "trigger",
                    description="epoch after which it starts, or a fraction of the epochs, as in "
                    "`optimizer.average_from`; trigger: when the validation of the raw weights stops improving",
                ),
            )
        },
    )
