"""Settings of an experiment: everything that decides its result, in one validated object."""

from __future__ import annotations

import inspect
import math
import types
import typing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import torch
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, create_model, model_validator

from selfish_rnn.errors import short_repr
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS, WITHOUT_PARTS
from selfish_rnn.experiment.optimizers import OPTIMIZERS, AveragedSettings, AverageSettings, OptimizerSection
from selfish_rnn.experiment.sections import Count, Factor, Rate, Section, Seed, expand_name, one_of, part
from selfish_rnn.models import MODELS, LanguageModel
from selfish_rnn.topology import SELFISH, Method, parse_granularity

LARGEST_SIZE = 10**6
"""Upper bound of the size of a layer."""

MOST_LAYERS = 1000
"""Upper bound of the number of layers, micro-steps and experts."""

MOST_THREADS = 1024


class ModelSettings(Section):
    """Settings that all models share; the others are the keyword arguments of the model's constructor."""

    name: str

    def build(self, vocabulary: int) -> LanguageModel:
        """Return the language model for a vocabulary of the given size."""
        return MODELS[self.name](vocabulary, **self.model_dump(exclude={"name"}))

    def outline(self, vocabulary: int) -> LanguageModel:
        """Return the model on the meta device: names, shapes and gates without memory."""
        with torch.device("meta"):
            return self.build(vocabulary)

    def sizes(self, vocabulary: int) -> tuple[int, int]:
        """Return the number of positions in the sparse matrices, and of all other parameters."""
        model = self.outline(vocabulary)
        sparse = sum(math.prod(matrix.shape) for matrix in model.sparse_matrices())
        return sparse, sum(parameter.numel() for parameter in model.parameters()) - sparse

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the name of the model, because the class is generated."""
        return _unpickled_model, (self.model_dump(),)


def _unpickled_model(settings: dict[str, Any]) -> ModelSettings:
    return MODEL_SETTINGS[settings["name"]].model_validate(settings)


MODEL_KEYS = {
    "embedding": "size of the word vectors",
    "hidden": "units per recurrent layer",
    "hidden_last": "units of the last recurrent layer",
    "layers": "number of recurrent layers",
    "depth": "micro-steps of the highway cell",
    "chunk": "units that share one row of the master gates",
    "experts": "number of mixed softmaxes",
    "init_range": "embedding and output matrix start uniformly within ± this value",
    "tied": "use the embedding as output matrix",
    "transform_bias": "initial bias of the transform gate; null: drawn like the other weights",
    "dropout": "dropout outside the recurrence, drawn per element",
    "dropout_word": "dropout of whole words in the embedding",
    "dropout_input": "dropout of the input of the first layer, one mask per window",
    "dropout_hidden": "dropout between layers (rhn: of the state), one mask per window",
    "dropout_output": "dropout of the output of the last layer, one mask per window",
    "dropout_latent": "dropout of the input of the experts",
    "weight_drop": "dropout of single recurrent weights (DropConnect)",
}
"""Descriptions of the keyword arguments of the models."""


def _model_settings(name: str) -> type[ModelSettings]:
    """Return the section of a model, with a field for every keyword-only argument of its constructor."""
    constructor = partial(MODELS[name])  # merges with the entry if that is a partial already
    hints = typing.get_type_hints(constructor.func.__init__)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for parameter in inspect.signature(constructor.func).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in constructor.keywords:
            default = Field(parameter.default, description=MODEL_KEYS.get(parameter.name))
            fields[parameter.name] = (_bounded(parameter.name, hints[parameter.name]), default)
    return create_model(f"Settings of {name}", __base__=ModelSettings, **fields)


def _bounded(name: str, hint: Any) -> Any:
    """Return the type of a size with an upper bound, so that absurd sizes fail at once."""
    if hint is int:
        return Annotated[int, Field(le=MOST_LAYERS if name in ("layers", "depth", "experts") else LARGEST_SIZE)]
    inner = typing.get_args(hint)
    if not inner or typing.get_origin(hint) is Literal:
        return hint
    bounded = tuple(_bounded(name, option) for option in inner)
    return Union[bounded] if isinstance(hint, types.UnionType) else hint.__origin__[bounded]  # noqa: UP007


MODEL_SETTINGS = {name: _model_settings(name) for name in MODELS}
"""Section of every model."""

if TYPE_CHECKING:
    ModelSection = ModelSettings
else:
    ModelSection = Annotated[
        Union[tuple(MODEL_SETTINGS.values())],  # noqa: UP007
        BeforeValidator(expand_name),
        Field(discriminator="name"),
    ]


class MethodSettings(Section):
    """A method of the method table, with parts that replace its own."""

    name: Annotated[str, one_of("method", CONFIGURABLE_METHODS)] = Field(SELFISH.name, description="name of the method")
    allocation: Annotated[str, part("allocation")] = Field(description="division of the budget at the start")
    removal: Annotated[str | None, part("removal")] = Field(description="choice of the weights that are pruned")
    pool: Annotated[str, part("pool")] = Field(description="set within which weights are ranked")
    redistribution: Annotated[str, part("redistribution")] = Field(description="receiver of the freed budget")
    growth: Annotated[str | None, part("growth")] = Field(description="choice of the positions that are regrown")
    pruning: Annotated[str | None, part("pruning")] = Field(
        description="schedule of permanent pruning, for methods without growth"
    )
    strength: Rate = Field(7e-5, description="weight of the group lasso of iss")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        settings = expand_name(value)
        if not isinstance(settings, dict):
            return settings
        method = CONFIGURABLE_METHODS.get(str(settings.get("name")), SELFISH)
        return {"name": method.name, **method.part_names(), **settings}

    @model_validator(mode="after")
    def _fits_together(self) -> MethodSettings:
        self.build()
        return self

    @property
    def base(self) -> Method:
        """Method of the name, before parts are replaced."""
        return CONFIGURABLE_METHODS[self.name]

    def build(self) -> Method:
        """Return the method with its replaced parts."""
        names = self.base.part_names()
        replaced = {kind: value for kind, name in names.items() if (value := getattr(self, kind)) != name}
        if replaced and self.name in WITHOUT_PARTS:
            raise ValueError(f"method {self.name} has no replaceable parts: leave out {', '.join(replaced)}")
        return self.base.replace(**replaced)


MAY_CHANGE = ("device", "threads", "checkpoint_every", "engine", "keep_topologies")
"""Settings that may differ when a run is resumed: they decide where and how fast it runs."""


def check_granularity(granularity: str | dict[str, str]) -> str | dict[str, str]:
    """Return a granularity, or one by pattern of names, in its shortest form."""
    if isinstance(granularity, dict):
        return {pattern: _block(text) for pattern, text in granularity.items()}
    return _block(granularity)


def _block(text: str) -> str:
    rows, columns = parse_granularity(text)
    return f"{rows}x{columns}"


def check_device(name: str) -> str:
    """Return a usable device: ``cpu``, ``cuda`` or ``cuda:1``; ``cpu:0`` is ``cpu``."""
    if name == "cpu:0":
        return "cpu"
    if name != "cpu" and name.partition(":")[0] != "cuda":
        raise ValueError(f"device must be cpu or cuda, got {short_repr(name)}")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {short_repr(name)} cannot be used here ({reason}); cpu always can") from None
    return name


class Experiment(Section):
    """A complete experiment. Two runs with equal settings on one machine give the same weights, bit by bit."""

    corpus: str = Field("python-docs", description="python-docs, ptb, wikitext-2 or a folder with your own text")
    train_tokens: Count | None = Field(None, description="number of training tokens to use; null: all")
    vocabulary: Count | None = Field(
        None, description="number of most frequent training words to keep, the others become `<unk>`; null: all"
    )
    model: ModelSection = Field(MODEL_SETTINGS["stacked-lstm"].model_validate({}), description="network")
    method: MethodSettings = Field(
        default_factory=lambda: MethodSettings.model_validate("selfish"), description="sparse training method"
    )
    sparsity: float = Field(0.67, ge=0, lt=1, description="fraction of zeros")
    granularity: Annotated[str | dict[str, str], AfterValidator(check_granularity)] = Field(
        "1x1",
        description="unit that is pruned and regrown: 1x1, or blocks of rows x columns such as 8x4; by patterns of "
        "names: `{'*': 8x4, decoder: 1x4}`",
    )
    keep_diagonal: bool = Field(False, description="always keep the diagonals of recurrent matrices")
    prune_rate: float = Field(0.7, ge=0, le=1, description="fraction of the weights that the first rewiring replaces")
    prune_schedule: Annotated[str, part("schedule")] = Field("cosine", description="decay of the prune rate")
    rewire_every: Count | None = Field(None, description="updates between rewirings; null: one rewiring per epoch")
    rescale: bool = Field(False, description="divide the initial weights by sqrt(density)")
    optimizer: OptimizerSection = Field(AveragedSettings.model_validate({"name": "snt-asgd"}), description="optimizer")
    epochs: Count = Field(100, description="passes over the training text")
    batch_size: Count = Field(20, description="number of parallel texts in a batch")
    sub_batches: Count = Field(1, description="parts of a batch whose gradients are accumulated")
    valid_batch_size: Count = Field(20, description="batch size of the validation")
    test_batch_size: Count = Field(20, description="batch size of the test")
    window: Count = Field(35, description="truncated-BPTT length in tokens")
    variable_window: bool = Field(False, description="draw the BPTT length around `window`, and scale lr with it")
    clip: float | None = Field(0.25, gt=0, description="largest gradient norm; null: no clipping")
    ar: Factor = Field(0.0, description="weight of the activation penalty")
    tar: Factor = Field(0.0, description="weight of the temporal activation penalty")
    averages: tuple[AverageSettings, ...] = Field(
        (),
        description="additional averages of the weights, such as `[{kind: nt, from: 20}]`; they do not change the "
        "training",
    )
    restart_at: tuple[int, ...] = Field(
        (), description="epochs after which averages restart, except those with `restart: false`"
    )
    early_stop: Count | None = Field(None, description="stop after this many epochs without improvement; null: never")
    seed: Seed = Field(1111, description="seed for all random draws")
    start_seed: Seed | None = Field(None, description="seed for the initial weights and topology; null: `seed`")
    engine: Literal["auto", "masked", "packed"] = Field(
        "auto", description="masked: dense tensors and a mask; packed: existing weights only; auto: the faster one"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="precision of the packed engine's products: float32, or bfloat16 operands with float32 sums",
    )
    device: Annotated[str, AfterValidator(check_device)] = Field("cpu", description="cpu, cuda or cuda:1")
    threads: int | None = Field(None, gt=0, le=MOST_THREADS, description="CPU threads; null: torch's default")
    keep_topologies: bool = Field(True, description="save the topology after every rewiring")
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
        """Check that averages have different names, start within the run and suit the method."""
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
        of_all_positions = signal is not None and signal.kept_by_optimizer and OPTIMIZERS[self.optimizer.name].momentum
        if names and of_all_positions:
            raise ValueError(
                f"averages do not work with method {self.method.name} and optimizer {self.optimizer.name}, which has a "
                "momentum of all positions: use snt-asgd, nt-asgd or sgd, or leave out averages"
            )
