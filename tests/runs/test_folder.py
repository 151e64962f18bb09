"""A run's folder is used once, and found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from selfish_rnn.corpora import Corpus, Vocabulary
from selfish_rnn.errors import UserError
from selfish_rnn.runs.folder import RunFolder
from tiny_runs import epoch_record


def corpus(*words: str) -> Corpus:
    stream = torch.arange(len(words))
    return Corpus("mine", Vocabulary(words), stream, stream, stream)


def create(path: Path, config: str = "epochs: 3\n") -> RunFolder:
    return RunFolder.create(path, config, corpus("a", "<eos>"))


def test_a_new_folder_holds_the_configuration_and_opens(tmp_path: Path):
    created = create(tmp_path / "runs" / "one")
    assert created.config.read_text() == "epochs: 3\n"
    assert RunFolder.open(tmp_path / "runs" / "one").path == created.path


def test_an_empty_folder_may_be_used(tmp_path: Path):
    assert create(tmp_path).config.exists()


def test_a_folder_with_a_run_is_refused_and_left_alone(tmp_path: Path):
    create(tmp_path / "one")
    with pytest.raises(UserError, match=r"one already holds a run; .*--run.*selfish-rnn resume .*one"):
        create(tmp_path / "one", "epochs: 4\n")
    assert (tmp_path / "one" / "config.yaml").read_text() == "epochs: 3\n"


def test_a_folder_with_other_files_and_a_file_are_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match=r"exists and is not empty; give another folder with --run$"):
            create(path)


def test_a_folder_without_configuration_is_no_run(tmp_path: Path):
    with pytest.raises(UserError, match=r"is not the folder of a run: it has no config\.yaml"):
        RunFolder.open(tmp_path)
    with pytest.raises(UserError, match=r"nowhere does not exist$"):
        RunFolder.open(tmp_path / "nowhere")


def test_free_names_count_up_and_fill_gaps(tmp_path: Path):
    assert RunFolder.free_name(tmp_path, "quick") == tmp_path / "quick-1"
    for name in ("quick-1", "quick-2", "quick-4"):
        (tmp_path / name).mkdir()
    assert RunFolder.free_name(tmp_path, "quick") == tmp_path / "quick-3"
    assert RunFolder.free_name(tmp_path, "other") == tmp_path / "other-1"


def test_summary_and_vocabulary_come_back(tmp_path: Path):
    folder = create(tmp_path)
    folder.write_summary({"test_perplexity": 12.5})
    assert json.loads(folder.summary.read_text()) == {"test_perplexity": 12.5}
    folder.write_corpus(corpus("zażółć", "<eos>"))
    assert folder.read_vocabulary() == Vocabulary(("zażółć", "<eos>"))


def test_another_corpus_is_refused(tmp_path: Path):
    folder = create(tmp_path)
    folder.check_corpus(corpus("a", "<eos>"))
    with pytest.raises(UserError, match=r"corpus mine differs from the one in .*corpus\.json"):
        folder.check_corpus(corpus("b", "<eos>"))
    same_words = corpus("a", "<eos>")
    changed = Corpus("mine", same_words.vocabulary, same_words.train.flip(0), same_words.valid, same_words.test)
    with pytest.raises(UserError):
        folder.check_corpus(changed)


def test_a_missing_vocabulary_is_named(tmp_path: Path):
    folder = create(tmp_path)
    folder.vocabulary.unlink()
    with pytest.raises(UserError, match=r"vocabulary\.json"):
        folder.read_vocabulary()


def test_a_folder_that_is_locked_is_refused_and_nothing_is_written(tmp_path: Path):
    first = RunFolder(tmp_path)
    with first.locked(), pytest.raises(UserError, match="another process is training the run"):
        create(tmp_path)
    assert list(tmp_path.iterdir()) == []
    create(tmp_path)  # the lock is given back


def test_what_a_killed_process_left_half_written_goes_with_the_next_lock(tmp_path: Path):
    folder = create(tmp_path)
    (tmp_path / ".model.safetensors.x1.partial").mkdir()
    (tmp_path / ".model.safetensors.x1.partial" / "model.safetensors").touch()
    with folder.locked():
        assert not list(tmp_path.glob("*.partial"))


def test_a_model_is_missing_before_the_first_epoch_and_later_lost(tmp_path: Path):
    folder = create(tmp_path)
    with pytest.raises(UserError, match=f"no epoch is finished yet: selfish-rnn resume {tmp_path}"):
        folder.read_model("any")
    folder.metrics.append(epoch_record(1))
    with pytest.raises(UserError, match=r"model\.safetensors does not exist"):
        folder.read_model("any")
