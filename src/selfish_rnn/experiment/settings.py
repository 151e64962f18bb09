"""The settings of an experiment: everything that decides its result, in one validated object."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from selfish_rnn.errors import shown, unknown
from selfish_rnn.experiment.methods import CONFIGURED_METHODS, ConfiguredMethod
from selfish_rnn.models import MODELS, LanguageModel
from selfish_rnn.topology import SELFISH, Method
from selfish_rnn.topology.methods import OPTIONAL_PARTS, registered_names

LARGEST_SIZE, MOST_PARTS = 10**6, 1000
"""Of a layer; of layers, depths or experts."""


class Section(BaseModel):
    """Settings that know no other keys than their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def names_of(section: type[BaseModel]) -> tuple[str, ...]:
    """The names a section is for: of ``name: Literal["sgd", "adam"]``, these two."""
    return typing.get_args(section.model_fields["name"].annotation) if "name" in section.model_fields else ()


def name_alone(value: Any) -> Any:
    """A section that is written as its name alone."""
    return {"name": value} if isinstance(value, str) else value


class ModelSettings(Section):
    """What all models have in common; the rest are the keyword arguments of the model's constructor."""

    name: str

    def build(self, vocabulary: int) -> LanguageModel:
        """The language model, for a vocabulary of so many words."""
        return MODELS[self.name](vocabulary, **self.model_dump(exclude={"name"}))

    def outline(self, vocabulary: int) -> LanguageModel:
        """The same on the meta device: names, shapes and gates, which take neither time nor memory."""
        with torch.device("meta"):
            return self.build(vocabulary)

    def sizes(self, vocabulary: int) -> tuple[int, int]:
        """How many positions the matrices have that are made sparse, and how many parameters there are besides."""
        model = self.outline(vocabulary)
        sparse = sum(math.prod(each.shape) for each in model.sparse_matrices())
        return sparse, sum(parameter.numel() for parameter in model.parameters()) - sparse

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
    "init_range": "embedding and output matrix start uniformly within ± this",
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
        BeforeValidator(name_alone),
        Field(discriminator="name"),
    ]


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


def check_average_start(value: Any) -> Any:
    """Refuse what is not a whole epoch of at least 1, or a fraction of the run between 0 and 1."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9):
        return value
    if isinstance(value, float) and 0 < value < 1:
        return value
    raise ValueError(
        f"an average starts after a number of epochs (at least 1) or a fraction of them (between 0 and 1), "
        f"got {shown(value)}"
    )


def check_from(value: Any) -> Any:
    """Check the start of one of several averages, which may also be the trigger."""
    if value is None or (isinstance(value, str) and value != "trigger"):
        raise ValueError(f"from must be trigger, an epoch or a fraction, got {shown(value)}")
    return value if value == "trigger" else check_average_start(value)


def epochs_before(start: float, epochs: int) -> int:
    """Return the number of epochs before averaging starts.

    A fraction of the run is rounded to the nearest epoch between the first and the last but one.

    >>> epochs_before(20, epochs=60), epochs_before(0.5, epochs=60), epochs_before(0.01, epochs=60)
    (20, 30, 1)
    """
    return start if isinstance(start, int) else max(min(int(start * epochs + 0.5), epochs - 1), 1)


class AveragedSettings(OptimizerSettings):
    name: Literal["snt-asgd", "nt-asgd"]
    lr: Rate = Field(40.0, description="learning rate")
    nonmono: int = Field(
        5,
        ge=0,
        description="averaging starts if validation is no better than so many epochs before; epochs with a validation "
        "perplexity of 0.9 times the unigram perplexity or more do not count",
    )
    average_from: Annotated[int | float | None, BeforeValidator(check_average_start)] = Field(
        None,
        description="averaging starts after this epoch, with the first update of the next one, or after this fraction "
        "of the epochs (rounded); none: when validation stops improving (`nonmono`)",
    )


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


class AverageBase(Section):
    """Kind and name of one of the additional averages of a run; its start is the key ``from``."""

    kind: Literal["snt", "nt"] = Field(
        description="snt: over the values of each weight since it grew, as in SNT-ASGD; nt: over all, as in NT-ASGD"
    )
    restart: bool = Field(True, description="start anew at the epochs of `restart_at`; false: run on to the end")

    @property
    def start(self) -> int | float | Literal["trigger"]:
        """The value of ``from``: an epoch, a fraction of the run, or the trigger."""
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
                    description="the epoch after which it starts, or a fraction of the epochs, as in "
                    "`optimizer.average_from`; trigger: when the validation of the raw weights stops improving",
                ),
            )
        },
    )


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
    averages: tuple[AverageSettings, ...] = Field(
        (),
        description="averages that are recorded besides that of the optimizer, such as `[{kind: nt, from: 20}]`; the "
        "training does not depend on them",
    )
    restart_at: tuple[int, ...] = Field(
        (), description="epochs after which averages start anew, but for those with `restart: false`"
    )
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
        averaging = isinstance(self.optimizer, AveragedSettings)
        if self.restart_at and not averaging and not self.averages:
            raise ValueError(f"restart_at needs an averaging optimizer or averages, not {self.optimizer.name} alone")
        self._check_averages()
        return self

    def _check_averages(self) -> None:
        """Refuse averages that have one name, that never start, or that cannot be of this method."""
        names = [average.name for average in self.averages]
        starts = {f"averages has {average.name}, but": average.start for average in self.averages}
        if isinstance(self.optimizer, AveragedSettings) and self.optimizer.average_from is not None:
            starts["optimizer.average_from"] = self.optimizer.average_from
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"averages has {name} more than once")
        for what, start in starts.items():
            if isinstance(start, int) and start >= self.epochs:
                raise ValueError(f"{what} {start} is not an epoch before the last one, {self.epochs}")
        signal = self.method.build().signal
        if (
            names
            and signal is not None
            and signal.kept_by_optimizer
            and self.optimizer.name in ("momentum-sgd", "adam")
        ):
            raise ValueError(
                f"averages do not work with method {self.method.name} and optimizer {self.optimizer.name}, which has a "
                "momentum of all positions: use snt-asgd, nt-asgd or sgd, or leave out averages"
            )
