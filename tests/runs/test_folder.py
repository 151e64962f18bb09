"""A run's folder is used once, and found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from selfish_rnn.corpora import Corpus, Vocabulary
from selfish_rnn.errors import UserError
from selfish_rnn.runs.folder import RunFolder


def test_a_new_folder_holds_the_configuration_and_opens(tmp_path: Path):
    created = RunFolder.create(tmp_path / "runs" / "one", "epochs: 3\n")
    assert created.config.read_text() == "epochs: 3\n"
    assert RunFolder.open(tmp_path / "runs" / "one").path == created.path


def test_an_empty_folder_may_be_used(tmp_path: Path):
    assert RunFolder.create(tmp_path, "epochs: 3\n").config.exists()


def test_a_folder_with_a_run_is_refused_and_left_alone(tmp_path: Path):
    RunFolder.create(tmp_path / "one", "epochs: 3\n")
    with pytest.raises(UserError, match=r"one already holds a run; .*--run.*selfish-rnn resume .*one"):
        RunFolder.create(tmp_path / "one", "epochs: 4\n")
    assert (tmp_path / "one" / "config.yaml").read_text() == "epochs: 3\n"


def test_a_folder_with_other_files_and_a_file_are_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match=r"exists and is not empty; give another folder with --run$"):
            RunFolder.create(path, "epochs: 3\n")


def test_a_folder_without_configuration_is_no_run(tmp_path: Path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"is not the folder of a run: it has no config\.yaml"):
            RunFolder.open(path)


def test_free_names_count_up_and_fill_gaps(tmp_path: Path):
    assert RunFolder.free_name(tmp_path, "quick") == tmp_path / "quick-1"
    for name in ("quick-1", "quick-2", "quick-4"):
        (tmp_path / name).mkdir()
    assert RunFolder.free_name(tmp_path, "quick") == tmp_path / "quick-3"
    assert RunFolder.free_name(tmp_path, "other") == tmp_path / "other-1"


def corpus(*words: str) -> Corpus:
    stream = torch.arange(len(words))
    return Corpus("mine", Vocabulary(words), stream, stream, stream)


def test_summary_and_vocabulary_come_back(tmp_path: Path):
    folder = RunFolder.create(tmp_path, "epochs: 3\n")
    folder.write_summary({"test_perplexity": 12.5})
    assert json.loads(folder.summary.read_text()) == {"test_perplexity": 12.5}
    folder.write_corpus(corpus("zażółć", "<eos>"))
    assert folder.read_vocabulary() == Vocabulary(("zażółć", "<eos>"))


def test_another_corpus_is_refused(tmp_path: Path):
    folder = RunFolder.create(tmp_path, "epochs: 3\n")
    folder.check_corpus(corpus("a", "<eos>"))  # the first one is remembered
    folder.check_corpus(corpus("a", "<eos>"))
    with pytest.raises(UserError, match=r"corpus mine is no longer the one that .*corpus\.json tells of"):
        folder.check_corpus(corpus("b", "<eos>"))
    same_words = corpus("a", "<eos>")
    changed = Corpus("mine", same_words.vocabulary, same_words.train.flip(0), same_words.valid, same_words.test)
    with pytest.raises(UserError):
        folder.check_corpus(changed)


def test_a_missing_vocabulary_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"vocabulary\.json"):
        RunFolder.create(tmp_path, "epochs: 3\n").read_vocabulary()
