"""A trained model as one file, and the model back from it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import Tensor

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.engine import available
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.settings import MODEL_SETTINGS, ModelSettings
from selfish_rnn.files import ForeignFileError, load_tensors, save_tensors
from selfish_rnn.models import LanguageModel
from selfish_rnn.runs.run import Run
from selfish_rnn.training.saved_weights import restore

FORMAT = "1"
_REMEDY = "make one with `selfish-rnn export RUN`"


def export(run: Run, path: str | os.PathLike[str]) -> None:
    """Write the best model of a run with its vocabulary to one safetensors file.

    A sparse matrix is there as its existing weights, in the order of their positions, and its mask
    as bits, or their positions where these are smaller.
    """
    metadata = {
        "format": FORMAT,
        "model": json.dumps(run.experiment.model.model_dump(mode="json")),
        "vocabulary": run.vocabulary.to_json(),
    }
    save_tensors(path, run.folder.read_model(), metadata)


def load_model(path: str | os.PathLike[str], *, packed: bool | None = None) -> LanguageModel:
    """The model of a file that ``selfish-rnn export`` wrote, ready to call; its words are ``model.vocabulary``.

    >>> model = selfish_rnn.load_model("model.safetensors")
    >>> tokens = torch.tensor(model.vocabulary.encode("the cat")).view(-1, 1)  # time x batch
    >>> scores, state = model(tokens)

    With ``packed`` only the weights that exist are stored and multiplied; by default wherever the kernels were built.
    """
    tensors, settings, vocabulary = _read(Path(path))
    packed = available() if packed is None else packed
    model = restore(lambda: settings.build(len(vocabulary)), tensors, str(path), packed=packed)
    model.vocabulary = vocabulary
    return model.eval()


def _read(path: Path) -> tuple[dict[str, Tensor], ModelSettings, Vocabulary]:
    if not path.is_file():
        raise UserError(f"{path} is not a file: {_REMEDY}")
    try:
        tensors, metadata = load_tensors(path)
    except ForeignFileError:
        raise UserError(f"{path} is not an exported model: {_REMEDY}") from None
    missing = [key for key in ("format", "model", "vocabulary") if key not in metadata]
    if missing:
        raise UserError(f"{path} is not an exported model, it has no {', '.join(missing)}: {_REMEDY}")
    if metadata["format"] != FORMAT:
        raise UserError(f"{path} is of format {metadata['format']}, this version reads format {FORMAT}: {_REMEDY}")
    settings = json.loads(metadata["model"])
    if settings.get("name") not in MODEL_SETTINGS:
        raise UserError(f"{path} is of a model called {settings.get('name')!r}; known are {', '.join(MODEL_SETTINGS)}")
    checked = MODEL_SETTINGS[settings["name"]].model_validate(settings)
    return tensors, checked, Vocabulary.from_json(metadata["vocabulary"])
