"""Trained language models on the Hugging Face Hub, or in a folder laid out as there (the extra ``hub``)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download

from selfish_rnn.analysis.records import RunRecord, read_run
from selfish_rnn.analysis.report.comparison import command_of
from selfish_rnn.errors import UserError
from selfish_rnn.models import LanguageModel
from selfish_rnn.runs.export import export, load_model
from selfish_rnn.runs.run import Run

MODEL, FACTS = "model.safetensors", "config.json"
DOWNLOAD = ("revision", "cache_dir", "force_download", "token", "local_files_only")


class SharedModel(ModelHubMixin, library_name="selfish-rnn"):  # type: ignore[call-arg, unused-ignore]
    """Trained language model with its words and facts, to upload and to download.

    ::

        SharedModel.from_run("runs/mine").push_to_hub("me/mine")        # or save_pretrained("folder")
        model = SharedModel.from_pretrained("me/mine").model            # or from_pretrained("folder")
        scores, state = model(torch.tensor(model.vocabulary.encode("the cat")).view(-1, 1))

    It consists of the file of ``selfish-rnn export``, the facts as JSON, and a model card with sparsity, number of
    weights, perplexities and the command that trains the model again. Nothing in it is executed.
    """

    def __init__(self, model: LanguageModel, exported: bytes, facts: Mapping[str, Any]) -> None:
        self.model = model
        self.facts = dict(facts)
        self._exported = exported

    @classmethod
    def from_run(cls, path: str | Path) -> SharedModel:
        """Return the best model of a finished run."""
        record = read_run(path)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / MODEL
            export(Run.open(Path(path)), file)
            return cls(load_model(file), file.read_bytes(), facts_of(record))

    def _save_pretrained(self, save_directory: Path) -> None:
        (save_directory / MODEL).write_bytes(self._exported)
        (save_directory / FACTS).write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def _from_pretrained(cls, *, model_id: str, packed: bool | None = None, **where: Any) -> SharedModel:
        if Path(model_id).is_dir():
            files = {name: Path(model_id) / name for name in (MODEL, FACTS)}
            missing = [name for name, file in files.items() if not file.is_file()]
            if missing:
                raise UserError(f"{model_id} has no {' and no '.join(missing)}: make the folder with save_pretrained")
        else:
            known = {key: where[key] for key in DOWNLOAD}
            files = {name: Path(hf_hub_download(model_id, name, **known)) for name in (MODEL, FACTS)}
        facts = json.loads(files[FACTS].read_text(encoding="utf-8"))
        return cls(load_model(files[MODEL], packed=packed), files[MODEL].read_bytes(), facts)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the model card, in Markdown."""
        return ModelCard(model_card(self.facts))


def facts_of(record: RunRecord) -> dict[str, Any]:
    """Return the facts of a finished run for a model card."""
    summary = record.summary
    if summary is None:
        raise UserError(f"{record.name} is not finished: selfish-rnn resume {record.path}")
    return {
        "name": record.name,
        "model": dict(record.settings["model"]),
        "method": record.method,
        "optimizer": record.optimizer,
        "corpus": record.settings["corpus"],
        "sparsity": summary["sparsity"],
        "weights": summary["active_weights"],
        "positions": summary["total_weights"],
        "valid_perplexity": summary["valid_perplexity"],
        "test_perplexity": summary["test_perplexity"],
        "unigram_perplexity": summary["unigram_perplexity"],
        "command": command_of(record),
    }


def model_card(facts: Mapping[str, Any]) -> str:
    """Return a model card, with metadata for the Hub at its top."""
    rows = {
        "method": f"{facts['method']}, with {facts['optimizer']}",
        "sparsity": f"{facts['sparsity']:.4g}",
        "weights": f"{facts['weights']:,} of {facts['positions']:,} in the sparse matrices",
        "perplexity, validation": f"{facts['valid_perplexity']:.2f}",
        "perplexity, test": f"{facts['test_perplexity']:.2f}",
        "perplexity of single words, for comparison": f"{facts['unigram_perplexity']:.2f}",
        "text": facts["corpus"],
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""---
library_name: selfish-rnn
pipeline_tag: text-generation
tags: [selfish-rnn, sparse-training, {facts["model"]["name"]}]
---

# {facts["name"]}

A language model ({facts["model"]["name"]}) that was sparse from the first step of its training to the last.

| | |
|---|---|
{table}

Trained by

```sh
{facts["command"]}
```

To use it:

```python
from selfish_rnn.integrations.hub import SharedModel

model = SharedModel.from_pretrained("THIS REPOSITORY").model
```
"""
