"""Models as they are shared, through a folder laid out as on the Hub; nothing here needs a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("huggingface_hub")

from selfish_rnn import UserError
from selfish_rnn.integrations.hub import SharedModel
from selfish_rnn.training.evaluation import generate
from tiny_runs import tiny_run


@pytest.fixture(scope="module")
def run(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hub") / "tiny"
    tiny_run(texts, path, epochs=1).train()
    return path


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "tiny"
    SharedModel.from_run(run).save_pretrained(path)
    return path


@pytest.mark.parametrize("packed", [None, False])
def test_a_fetched_model_says_what_the_shared_one_does(run: Path, folder: Path, packed: bool | None) -> None:
    shared, fetched = SharedModel.from_run(run), SharedModel.from_pretrained(str(folder), packed=packed)
    words = shared.model.vocabulary
    said = [generate(each.model, words, "the cat", tokens=12, temperature=0) for each in (shared, fetched)]
    assert said[0] == said[1]
    assert fetched.facts == shared.facts


def test_the_card_carries_what_one_wants_to_know(run: Path, folder: Path) -> None:
    card, summary = (folder / "README.md").read_text(), json.loads((run / "summary.json").read_text())
    assert card.startswith("---\nlibrary_name: selfish-rnn\n")
    assert f"{summary['active_weights']:,} of {summary['total_weights']:,}" in card
    assert f"| perplexity, test | {summary['test_perplexity']:.2f} |" in card
    assert f"| sparsity | {summary['sparsity']:.4g} |" in card
    assert "\nselfish-rnn train " in card


def test_a_fetched_model_can_be_shared_again(folder: Path, tmp_path: Path) -> None:
    fetched = SharedModel.from_pretrained(folder)
    fetched.save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_pushing_uploads_the_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub is played by two functions, which is as far as one gets without it."""
    from huggingface_hub import HfApi

    uploaded: dict[str, int] = {}

    def upload(self: HfApi, *, folder_path: str | Path, **_: object) -> str:
        uploaded.update({file.name: file.stat().st_size for file in Path(folder_path).iterdir()})
        return "uploaded"

    class Created:
        repo_id = "me/tiny"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, **_: Created())
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    SharedModel.from_run(run).push_to_hub("me/tiny")
    assert set(uploaded) == {"model.safetensors", "config.json", "README.md"}


def test_an_unfinished_run_is_not_shared(texts: Path, tmp_path: Path) -> None:
    tiny_run(texts, tmp_path / "begun", epochs=1)
    with pytest.raises(UserError):
        SharedModel.from_run(tmp_path / "begun")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no model\.safetensors and no config\.json: make the folder with"):
        SharedModel.from_pretrained(str(tmp_path))


def test_a_fetched_model_scores_words(folder: Path) -> None:
    model = SharedModel.from_pretrained(folder).model
    scores, _ = model(torch.tensor(model.vocabulary.encode("the cat")).view(-1, 1))
    assert scores.shape == (2, 1, len(model.vocabulary))
