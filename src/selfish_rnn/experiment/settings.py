"""The settings of an experiment: everything that decides its result, in one validated object."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from selfish_rnn.errors import shown, unknown
from selfish_rnn.experiment.configured_methods import CONFIGURED_METHODS, ConfiguredMethod
from selfish_rnn.experiment.explain import names_of
from selfish_rnn.experiment.model_settings import MODEL_SETTINGS, ModelSection, Section, name_alone
from selfish_rnn.topology import SELFISH, Method
from selfish_rnn.topology.methods import OPTIONAL_PARTS, registered_names

LARGEST_SEED = 2**63 - 1
MOST_THREADS = 1024

Count = Annotated[int, Field(gt=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Beta = Annotated[float, Field(ge=0, lt=1)]
# Beyond a million float32 overflows within a few updates.
Factor = Annotated[float, Field(ge=0, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1e6)]


def one_of(kind: str, names: Collection[str]) -> BeforeValidator:
    """A name out of a table as it is when the name is given, or ``none`` for a part a method can be without.

    Another one is an error that shows the nearest match.
    """

    def check(value: Any) -> Any:
        if value == "none" and kind in OPTIONAL_PARTS:
            return None
        if value is not None and not (isinstance(value, str) and value in names):
            raise ValueError(unknown(kind, value, names))
        return value

    return BeforeValidator(check)


def part(kind: str) -> BeforeValidator:
    """The name of a part that is registered."""
    return one_of(kind, registered_names(kind))


class MethodSettings(Section):
    """A method of the method table; parts that are given replace its own."""

    name: Annotated[str, one_of("method", CONFIGURED_METHODS)] = Field(SELFISH.name, description="which method")
    allocation: Annotated[str, part("allocation")] = Field(description="how the budget is divided at the start")
    removal: Annotated[str | None, part("removal")] = Field(description="which weights go")
    pool: Annotated[str, part("pool")] = Field(description="the set within which weights are ranked")
    redistribution: Annotated[str, part("redistribution")] = Field(description="who gets the freed weights")
    growth: Annotated[str | None, part("growth")] = Field(description="where new weights come")
    pruning: Annotated[str | None, part("pruning")] = Field(description="when weights go for good, if none grow")
    strength: Rate = Field(7e-5, description="weight of the group lasso, for iss")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        given = name_alone(value)
        if not isinstance(given, dict):
            return given
        configured = CONFIGURED_METHODS.get(str(given.get("name")))
        method = SELFISH if configured is None else configured.method
        return {"name": method.name, **method.part_names(), **given}

    @model_validator(mode="after")
    def _goes_together(self) -> MethodSettings:
        self.build()
        return self

    @property
    def configured(self) -> ConfiguredMethod:
        """What the name stands for."""
        return CONFIGURED_METHODS[self.name]

    def build(self) -> Method:
        """The method with the parts that are given."""
        method, given = self.configured.method, self.model_dump()
        replaced = {kind: given[kind] for kind, name in method.part_names().items() if given[kind] != name}
        if replaced and not self.configured.has_parts:
            raise ValueError(f"method {self.name} is no composition of parts: leave out {', '.join(replaced)}")
        return method.replace(**replaced)


class LearningRateDrop(Section):
    """Divide the learning rate by ``factor`` after more than ``patience`` epochs in a row without improvement."""

    factor: float = Field(gt=1, description="what the learning rate is divided by")
    patience: int = Field(ge=0, description="epochs in a row without improvement that are let pass")


class LearningRateDecay(Section):
    """Divide the learning rate by ``factor`` at every epoch after epoch ``after``."""

    factor: float = Field(ge=1, description="what the learning rate is divided by")
    after: int = Field(ge=0, description="the last epoch with the first learning rate")


DROP = "lower lr when validation stops improving"


class OptimizerSettings(Section):
    """What all optimizers have in common."""

    name: str
    lr: Rate = Field(description="learning rate")
    weight_decay: Factor = Field(1.2e-6, description="part of a weight that is added to its gradient")
    drop: LearningRateDrop | None = Field(None, description=DROP)
    decay: LearningRateDecay | None = Field(None, description="lower lr at every epoch after a certain one")


class AveragedSettings(OptimizerSettings):
    name: Literal["snt-asgd", "nt-asgd"]
    lr: Rate = Field(40.0, description="learning rate")
    nonmono: int = Field(5, ge=0, description="averaging starts if validation is no better than so many epochs before")


class SGDSettings(OptimizerSettings):
    name: Literal["sgd"]
    lr: Rate = Field(1.0, description="learning rate")


class MomentumSettings(OptimizerSettings):
    name: Literal["momentum-sgd"]
    lr: Rate = Field(2.0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="part of the last step that is kept")
    drop: LearningRateDrop | None = Field(LearningRateDrop(factor=1.33, patience=1), description=DROP)


class AdamSettings(OptimizerSettings):
    name: Literal["adam"]
    lr: Rate = Field(0.001, description="learning rate")
    betas: tuple[Beta, Beta] = Field((0.0, 0.999), description="parts of the first and second moments that are kept")
    eps: float = Field(1e-9, gt=0, description="added to the root of the second moment")
    drop: LearningRateDrop | None = Field(LearningRateDrop(factor=2, patience=2), description=DROP)


OPTIMIZERS: dict[str, type[OptimizerSettings]] = {
    name: section
    for section in (AveragedSettings, SGDSettings, MomentumSettings, AdamSettings)
    for name in names_of(section)
}
"""The section of every optimizer."""

OptimizerSection = Annotated[
    AveragedSettings | SGDSettings | MomentumSettings | AdamSettings,
    BeforeValidator(name_alone),
    Field(discriminator="name"),
]


MAY_CHANGE = ("device", "threads", "checkpoint_every", "engine", "keep_topologies")
"""Settings that a run may be continued with other values of: they decide where and how fast it runs."""


def check_device(name: str) -> str:
    """A device that can be used here: ``cpu``, ``cuda`` or ``cuda:1``; there is one CPU, also called ``cpu:0``."""
    if name == "cpu:0":
        return "cpu"
    if name != "cpu" and name.partition(":")[0] != "cuda":
        raise ValueError(f"device must be cpu or cuda, got {shown(name)}")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {shown(name)} cannot be used here ({reason}); cpu always can") from None
    return name


class Experiment(Section):
    """A complete experiment. Two runs of the same settings on one machine give the same weights, bit by bit."""

    corpus: str = Field("python-docs", description="python-docs, ptb, wikitext-2 or a folder of your own")
    train_tokens: Count | None = Field(None, description="use only so many tokens of the training text")
    vocabulary: Count | None = Field(
        None, description="keep only so many words, the most frequent of the training text; the others are `<unk>`"
    )
    model: ModelSection = Field(MODEL_SETTINGS["stacked-lstm"].model_validate({}), description="the network")
    method: MethodSettings = Field(
        default_factory=lambda: MethodSettings.model_validate("selfish"), description="what is rewired, and how"
    )
    sparsity: float = Field(0.67, ge=0, lt=1, description="fraction of zeros")
    prune_rate: float = Field(0.7, ge=0, le=1, description="fraction of weights rewired at first")
    prune_schedule: Annotated[str, part("schedule")] = Field("cosine", description="how the prune rate falls")
    rewire_every: Count | None = Field(None, description="updates between rewirings; none: an epoch")
    rescale: bool = Field(False, description="divide the starting weights by sqrt(density)")
    optimizer: OptimizerSection = Field(
        AveragedSettings.model_validate({"name": "snt-asgd"}), description="what makes the steps"
    )
    epochs: Count = Field(100, description="passes over the training text")
    batch_size: Count = Field(20, description="texts side by side")
    sub_batches: Count = Field(1, description="parts of a batch whose gradients are accumulated")
    valid_batch_size: Count = Field(20, description="the same for validation")
    test_batch_size: Count = Field(20, description="the same for the test")
    window: Count = Field(35, description="steps back through time")
    variable_window: bool = Field(False, description="draw window lengths around window, and scale lr with them")
    clip: float | None = Field(0.25, gt=0, description="largest norm of the gradient")
    ar: Factor = Field(0.0, description="weight of the activation penalty")
    tar: Factor = Field(0.0, description="weight of the temporal activation penalty")
    restart_at: tuple[int, ...] = Field((), description="epochs after which averaging starts anew")
    early_stop: Count | None = Field(None, description="stop after so many epochs without improvement")
    seed: Seed = Field(1111, description="of everything that is drawn")
    start_seed: Seed | None = Field(None, description="of starting weights and topology; none: that of the run")
    engine: Literal["auto", "masked", "packed"] = Field(
        "auto", description="masked: dense with a mask; packed: existing weights only; auto: the faster"
    )
    device: Annotated[str, AfterValidator(check_device)] = Field("cpu", description="cpu, cuda or cuda:1")
    threads: int | None = Field(None, gt=0, le=MOST_THREADS, description="none: as many as torch chooses")
    keep_topologies: bool = Field(True, description="write down the topology after every rewiring")
    checkpoint_every: float = Field(
        10.0, gt=0, allow_inf_nan=True, description="minutes between checkpoints inside an epoch"
    )

    model_config = ConfigDict(validate_default=True)

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        if self.batch_size % self.sub_batches:
            raise ValueError(f"batch_size {self.batch_size} cannot be divided into {self.sub_batches} sub_batches")
        if self.restart_at and self.optimizer.name not in ("snt-asgd", "nt-asgd"):
            raise ValueError(f"restart_at needs an averaging optimizer, not {self.optimizer.name}")
        return self
