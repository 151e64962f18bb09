from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selfish_rnn.corpora import KNOWN_CORPORA, load_corpus
from selfish_rnn.corpora.cache import cache_directory, data_directory
from selfish_rnn.errors import UserError

MakeFolder = Callable[..., Path]


def refusal(name_or_folder: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        load_corpus(name_or_folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_folder(make_folder: MakeFolder) -> None:
    folder = make_folder(train=" a b \n\nb c", valid="c d\n", test="a e\n", name="novel")
    for spelling in (folder, str(folder)):
        corpus = load_corpus(spelling)
        assert corpus.name == "novel"
        assert corpus.vocabulary.tokens == ("a", "b", "<eos>", "c", "d", "e")
        assert corpus.train.tolist() == [0, 1, 2, 2, 1, 3, 2]
        assert corpus.valid.tolist() == [3, 4, 2]
        assert corpus.test.tolist() == [0, 5, 2]


def test_byte_order_mark_is_not_a_word(make_folder: MakeFolder) -> None:
    assert load_corpus(make_folder(train="\ufeffa b\n")).vocabulary.tokens[0] == "a"


def test_known_name_wins_over_folder(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(name="python-docs")
    monkeypatch.chdir(folder.parent)
    assert len(load_corpus("python-docs").vocabulary) > 1000
    for spelling in ("./python-docs", Path("python-docs")):
        assert len(load_corpus(spelling).vocabulary) == 6


def test_missing_folder(tmp_path: Path) -> None:
    for spelling in (tmp_path / "absent", str(tmp_path / "absent")):
        message = refusal(spelling)
        assert str(tmp_path / "absent") in message
        assert "does not exist" in message


def test_file_instead_of_folder(make_folder: MakeFolder) -> None:
    assert "is a file" in refusal(make_folder() / "train.txt")


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_missing_and_empty_files(make_folder: MakeFolder, split: str) -> None:
    folder = make_folder()
    for nothing in ("", " \n\n"):
        (folder / f"{split}.txt").write_text(nothing)
        assert f"{split}.txt is empty" in refusal(folder)
    (folder / f"{split}.txt").unlink()
    assert f"has no {split}.txt" in refusal(folder)
    (folder / f"{split}.txt").mkdir()
    assert f"cannot read {folder / split}.txt" in refusal(folder)


def test_other_encoding(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "valid.txt").write_bytes("ein schöner Tag".encode("latin-1"))
    message = refusal(folder)
    assert str(folder / "valid.txt") in message
    assert "byte 0xf6 at offset 7" in message


@pytest.mark.parametrize(
    ("name", "nearest"), [("PTB", "ptb"), ("wikitext2", "wikitext-2"), ("pythondocs", "python-docs"), ("~nobody", None)]
)
def test_unknown_name(name: str, nearest: str | None) -> None:
    message = refusal(name)
    assert repr(name) in message
    assert all(known in message for known in KNOWN_CORPORA)
    if nearest:
        assert f"did you mean {nearest!r}?" in message


def test_empty_name_is_not_the_current_folder(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_folder())
    assert "unknown corpus ''" in refusal("")
    assert load_corpus(".").name == "texts"


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SELFISH_RNN_DATA", "~/data")
    assert data_directory() == tmp_path / "data"
    monkeypatch.setenv("SELFISH_RNN_DATA", "")
    assert data_directory() is None
    monkeypatch.setenv("SELFISH_RNN_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("SELFISH_RNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "selfish-rnn"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() == tmp_path / ".cache" / "selfish-rnn"
