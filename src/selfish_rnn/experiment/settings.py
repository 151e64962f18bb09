"""The settings of an experiment: everything that decides its result, in one validated object."""

from __future__ import annotations

import hashlib
import inspect
import json
import types
import typing
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from selfish_rnn.errors import shown, unknown
from selfish_rnn.experiment.configured_methods import CONFIGURED_METHODS, ConfiguredMethod
from selfish_rnn.experiment.explain import names_of
from selfish_rnn.models import MODELS, LanguageModel
from selfish_rnn.topology import SELFISH, Method
from selfish_rnn.topology.methods import OPTIONAL_PARTS, registered_names

LARGEST_SIZE, MOST_PARTS = 10**6, 1000
"""Of a layer; of layers, depths or experts."""

LARGEST_SEED = 2**63 - 1
MOST_THREADS = 1024

Count = Annotated[int, Field(gt=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Beta = Annotated[float, Field(ge=0, lt=1)]
# Beyond a million float32 overflows within a few updates.
Factor = Annotated[float, Field(ge=0, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1e6)]


class Section(BaseModel):
    """Settings that know no other keys than their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


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


def _name_alone(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class MethodSettings(Section):
    """A method of the method table; parts that are given replace its own."""

    name: Annotated[str, one_of("method", CONFIGURED_METHODS)] = Field(SELFISH.name, description="which method")
    allocation: Annotated[str, part("allocation")] = Field(description="how the budget is divided at the start")
    removal: Annotated[str | None, part("removal")] = Field(description="which weights go")
    pool: Annotated[str, part("pool")] = Field(description="among which weights the smallest are looked for")
    redistribution: Annotated[str, part("redistribution")] = Field(description="who gets the freed weights")
    growth: Annotated[str | None, part("growth")] = Field(description="where new weights come")
    pruning: Annotated[str | None, part("pruning")] = Field(description="when weights go for good, if none grow")
    strength: Rate = Field(7e-5, description="weight of the group lasso, for iss")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        given = _name_alone(value)
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
    BeforeValidator(_name_alone),
    Field(discriminator="name"),
]


class ModelSettings(Section):
    """What all models have in common; the rest are the keyword arguments of the model's constructor."""

    name: str

    def build(self, vocabulary: int) -> LanguageModel:
        """The language model, for a vocabulary of so many words."""
        return MODELS[self.name](vocabulary, **self.model_dump(exclude={"name"}))

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process finds the class by the name of the model: it is made, not written."""
        return _sent_model, (self.model_dump(),)


def _sent_model(settings: dict[str, Any]) -> ModelSettings:
    return MODEL_SETTINGS[settings["name"]].model_validate(settings)


MODEL_KEYS = {
    "embedding": "width of a word's vector",
    "hidden": "units of a recurrent layer",
    "hidden_last": "units of the last recurrent layer",
    "layers": "recurrent layers",
    "depth": "micro-steps of the highway cell",
    "chunk": "units that share a row of the master gates",
    "experts": "softmaxes that are mixed",
    "tied": "the output matrix is the embedding",
    "transform_bias": "first bias of the transform gate; none: drawn as all others",
    "dropout": "on everything but the recurrence, drawn for every element",
    "dropout_word": "of whole words in the embedding",
    "dropout_input": "of what enters the first layer, one mask for a window",
    "dropout_hidden": "between layers (rhn: of the state), one mask for a window",
    "dropout_output": "of what leaves the last layer, one mask for a window",
    "dropout_latent": "of what the experts see",
    "weight_drop": "of single recurrent weights (DropConnect)",
}
"""What the keyword arguments of the models mean."""


def _model_settings(name: str) -> type[ModelSettings]:
    constructor = partial(MODELS[name])  # of one that is partial already it is the same
    hints = typing.get_type_hints(constructor.func.__init__)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for parameter in inspect.signature(constructor.func).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in constructor.keywords:
            default = Field(parameter.default, description=MODEL_KEYS.get(parameter.name))
            fields[parameter.name] = (_bounded(parameter.name, hints[parameter.name]), default)
    return create_model(f"Settings of {name}", __base__=ModelSettings, **fields)


def _bounded(name: str, hint: Any) -> Any:
    """The type of a size, wherever it has numbers: one no network has would be found out after long work, or never."""
    if hint is int:
        return Annotated[int, Field(le=MOST_PARTS if name in ("layers", "depth", "experts") else LARGEST_SIZE)]
    inner = typing.get_args(hint)
    if not inner or typing.get_origin(hint) is Literal:
        return hint
    bounded = tuple(_bounded(name, part) for part in inner)
    return Union[bounded] if isinstance(hint, types.UnionType) else hint.__origin__[bounded]  # noqa: UP007


MODEL_SETTINGS = {name: _model_settings(name) for name in MODELS}
"""The section of every model."""

if TYPE_CHECKING:
    ModelSection = ModelSettings
else:
    ModelSection = Annotated[
        Union[tuple(MODEL_SETTINGS.values())],  # noqa: UP007
        BeforeValidator(_name_alone),
        Field(discriminator="name"),
    ]


MAY_CHANGE = ("device", "threads", "checkpoint_every", "engine", "keep_topologies")
"""Settings that a run may be continued with other values of: they decide where and how fast it runs."""


def changed_settings(before: dict[str, Any], now: Experiment) -> list[str]:
    """The keys in which an experiment differs from what it was, but for those that may change."""
    current = now.model_dump(mode="json")
    changed = []
    for key in current:
        old, new = before.get(key), current[key]
        if key in MAY_CHANGE or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            changed += [f"{key}.{inner}" for inner in new if old.get(inner) != new[inner]]
        else:
            changed.append(key)
    return changed


def identity(experiment: Experiment) -> str:
    """What tells the models of an experiment from those of others: a SHA-256 of all settings that decide a result."""
    decisive = experiment.model_dump(mode="json", exclude=set(MAY_CHANGE), exclude_defaults=True)
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


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
