"""Export of a trained model to one file, and loading of such files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from selfish_rnn.corpora import Corpus, Vocabulary, load_corpus, truncated, with_words
from selfish_rnn.engine import available
from selfish_rnn.engine.saving import SavedWeights, make_sparse
from selfish_rnn.errors import UserError, short_repr
from selfish_rnn.experiment.comparison import identity
from selfish_rnn.experiment.presets import explain
from selfish_rnn.experiment.sections import Count, Section
from selfish_rnn.experiment.settings import MODEL_SETTINGS, ModelSettings
from selfish_rnn.files import ForeignFileError, load_tensors, save_tensors
from selfish_rnn.models import LanguageModel
from selfish_rnn.runs.checkpoints import WRONG_CONTENT
from selfish_rnn.runs.run import Run
from selfish_rnn.training.evaluation import EvaluationSettings

Precision = Literal["float32", "int8"]
Part = TypeVar("Part", bound=Section)

FORMATS: dict[str, Precision] = {"2": "float32", "int8 2": "int8"}
"""Precision of the weights by format of the file."""

_REMEDY = "make one with `selfish-rnn export RUN`"


def export(run: Run, path: str | os.PathLike[str], *, precision: Precision = "float32") -> None:
    """Write the best model of a run with its vocabulary to one safetensors file.

    Sparse matrices are written as existing weights and positions (``docs/format.md``). With ``precision="int8"`` the
    weights are rounded as by :func:`selfish_rnn.quantize`.
    """
    experiment, saved = run.experiment, run.folder.read_model(identity(run.experiment))
    metadata = {
        "format": next(name for name, kind in FORMATS.items() if kind == precision),
        "model": json.dumps(experiment.model.model_dump(mode="json")),
        "vocabulary": run.vocabulary.to_json(),
        "corpus": experiment.corpus,
        "evaluation": json.dumps(EvaluationSettings.of(experiment).model_dump()),
        "training": json.dumps({"tokens": experiment.train_tokens, "sha256": run.folder.corpus_checksum()}),
    }
    if precision == "int8":
        if not saved.shapes:
            raise UserError(f"{run.folder.path} has no sparse weights: int8 is for sparse models")
        saved = saved.quantized()
    save_tensors(path, saved.tensors, {**metadata, **saved.metadata})


def load_model(
    path: str | os.PathLike[str], *, packed: bool | None = None, arithmetic: Precision | None = None
) -> LanguageModel:
    """Return the model of a file that ``selfish-rnn export`` wrote; its words are ``model.vocabulary``.

    >>> model = selfish_rnn.load_model("model.safetensors")
    >>> tokens = torch.tensor(model.vocabulary.encode("the cat")).view(-1, 1)  # time x batch
    >>> scores, state = model(tokens)
    >>> step = model.next_word()  # word by word: step(word) returns the scores of the next word in one call

    Args:
        path: the exported file.
        packed: store and multiply only existing weights; by default if the kernels were built.
        arithmetic: precision of a packed model; by default that of the file.
    """
    return ExportedModel.read(path).model(packed=packed, arithmetic=arithmetic)


class TrainingText(Section):
    """Number of training tokens of a model and checksum of its corpus; None in files of earlier versions."""

    tokens: Count | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class ExportedModel:
    """Content of a file that ``selfish-rnn export`` wrote."""

    path: Path
    precision: Precision
    weights: SavedWeights
    settings: ModelSettings
    vocabulary: Vocabulary
    corpus_name: str | None
    evaluation: EvaluationSettings
    training: TrainingText

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ExportedModel:
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path} is not a file: {_REMEDY}")
        try:
            tensors, metadata = load_tensors(path)
        except ForeignFileError:
            raise UserError(f"{path} is not an exported model: {_REMEDY}") from None
        missing = [key for key in ("format", "model", "vocabulary") if key not in metadata]
        if missing:
            raise UserError(f"{path} is not an exported model, it has no {', '.join(missing)}: {_REMEDY}")
        if metadata["format"] not in FORMATS:
            known = ", ".join(FORMATS)
            raise UserError(f"{path} has format {metadata['format']}, this version reads format {known}: {_REMEDY}")
        try:
            settings = json.loads(metadata["model"])
            if not isinstance(settings, dict) or settings.get("name") not in list(MODEL_SETTINGS):
                name = settings.get("name") if isinstance(settings, dict) else settings
                raise UserError(
                    f"{path} contains an unknown model {short_repr(name)}; known are {', '.join(MODEL_SETTINGS)}"
                )
            checked = MODEL_SETTINGS[settings["name"]].model_validate(settings)
            evaluation = _part(EvaluationSettings, "evaluation", metadata)
            training = _part(TrainingText, "training", metadata)
        except UserError:
            raise
        except ValidationError as error:
            raise UserError(f"{path} is damaged: {explain(error, MODEL_SETTINGS[settings['name']])}") from None
        except WRONG_CONTENT as error:
            raise UserError(f"{path} is damaged: {str(error)[:200]}") from error
        return cls(
            path,
            FORMATS[metadata["format"]],
            SavedWeights.read(tensors, metadata, str(path)),
            checked,
            Vocabulary.from_json(metadata["vocabulary"]),
            metadata.get("corpus"),
            evaluation,
            training,
        )

    def model(self, *, packed: bool | None = None, arithmetic: Precision | None = None) -> LanguageModel:
        """Return the model; see :func:`load_model`."""
        packed = available() if packed is None else packed
        arithmetic = arithmetic or (self.precision if packed else "float32")
        if arithmetic == "int8" and (self.precision != "int8" or not packed):
            raise UserError(
                f"{self.path} has weights in {self.precision}: int8 arithmetic needs a file made with `selfish-rnn "
                "export RUN --precision int8`, and the kernels"
            )
        words, int8 = len(self.vocabulary), arithmetic == "int8"
        outline = partial(self.settings.outline, words)
        model = make_sparse(outline, self.weights, str(self.path), packed=packed, int8=int8)
        model.vocabulary = self.vocabulary
        return model.eval()

    def corpus(self, name: str | None = None) -> Corpus:
        """Return the corpus of the run, or another one, in the words of the model; all of them must occur in it."""
        name = name or self.corpus_name
        if name is None:
            raise UserError(f"{self.path} does not say which corpus its run had: name one with --corpus")
        corpus = load_corpus(name)
        if self.training.tokens is not None:
            corpus = truncated(corpus, self.training.tokens)
        if corpus.vocabulary == self.vocabulary:
            return corpus
        try:
            return with_words(corpus, self.vocabulary)
        except UserError as error:
            raise UserError(
                f"the corpus {name} has other words than {self.path}: name that of its run with --corpus ({error})"
            ) from error

    def trained_on(self, corpus: Corpus) -> bool:
        """Return whether the model was certainly trained on this corpus, as :meth:`corpus` returned it."""
        return self.training.sha256 == corpus.checksum()


def _part(kind: type[Part], key: str, metadata: Mapping[str, str]) -> Part:
    try:
        return kind.model_validate_json(metadata.get(key, "{}"))
    except ValidationError as error:
        raise TypeError(f"the settings of its {key}: {explain(error, kind)}") from None
