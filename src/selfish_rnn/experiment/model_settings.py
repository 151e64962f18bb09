"""The settings of a model: the keyword arguments of its constructor."""

from __future__ import annotations

import inspect
import math
import types
import typing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from selfish_rnn.models import MODELS, LanguageModel

LARGEST_SIZE, MOST_PARTS = 10**6, 1000
"""Of a layer; of layers, depths or experts."""


class Section(BaseModel):
    """Settings that know no other keys than their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


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
