from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfish_rnn.corpora import Corpus, load_corpus, loading
from selfish_rnn.corpora.cache import cache_path, load_cached, store
from selfish_rnn.corpora.corpus import SPLITS, encode_texts

MakeFolder = Callable[..., Path]
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def assert_same(first: Corpus, second: Corpus) -> None:
    assert first.name == second.name
    assert first.vocabulary == second.vocabulary
    for split in SPLITS:
        assert getattr(first, split).dtype == getattr(second, split).dtype
        assert getattr(first, split).equal(getattr(second, split))


def entries(cache: Path) -> list[Path]:
    return list((cache / "tokens").iterdir())


@given(TEXT, TEXT, TEXT, st.sampled_from(["whitespace", "prose"]))
@settings(max_examples=40, deadline=None)
def test_kept_corpus_equals_the_fresh_one(train: str, valid: str, test: str, tokenizer: str) -> None:
    fresh = encode_texts("any", {"train": train, "valid": valid, "test": test}, tokenizer)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "entry.safetensors"
        store(fresh, path)
        kept = load_cached("any", path)
    assert kept is not None
    assert_same(kept, fresh)


def test_second_load_does_not_split_again(
    make_folder: MakeFolder, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = load_corpus(make_folder())
    assert len(entries(cache)) == 1

    def forbidden(*arguments: object) -> Corpus:
        raise AssertionError("the text was split again")

    monkeypatch.setattr(loading, "encode_texts", forbidden)
    assert_same(load_corpus(make_folder()), fresh)


def test_changed_text_is_noticed(make_folder: MakeFolder, cache: Path) -> None:
    load_corpus(make_folder())
    assert "z" in load_corpus(make_folder(test="a z\n")).vocabulary
    assert len(entries(cache)) == 2


def test_key_depends_on_content_division_and_tokenizer() -> None:
    texts = {"train": b"ab", "valid": b"c", "test": b"d"}
    moved = {"train": b"a", "valid": b"bc", "test": b"d"}
    paths = {cache_path(texts, "whitespace"), cache_path(moved, "whitespace"), cache_path(texts, "prose")}
    assert len(paths) == 3


@pytest.mark.slow
def test_any_damage_is_repaired_silently(make_folder: MakeFolder, cache: Path) -> None:
    fresh = load_corpus(make_folder())
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    changed = [
        whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :] for position in range(len(whole))
    ]
    shortened = [whole[:length] for length in (0, 5, len(whole) // 2, len(whole) - 1)]
    for damaged in (*changed, *shortened, b"not safetensors at all"):
        entry.write_bytes(damaged)
        assert_same(load_corpus(make_folder()), fresh)
    entry.write_bytes(b"")
    load_corpus(make_folder())
    assert load_cached("texts", entry) is not None
    entry.write_bytes(whole.replace(b"I32", b"F32"))
    assert load_cached("texts", entry) is None


def test_killed_writer_leaves_no_entry(make_folder: MakeFolder, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            load_corpus(make_folder())
    assert entries(cache) == []
    load_corpus(make_folder())
    assert len(entries(cache)) == 1


def test_writers_and_readers_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "entry.safetensors"
    fresh = encode_texts("race", dict.fromkeys(SPLITS, "some words " * 2000), "whitespace")
    store(fresh, path)

    def write_and_read(turn: int) -> None:
        store(fresh, path)
        kept = load_cached("race", path)
        assert kept is not None
        assert_same(kept, fresh)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_and_read, range(40)))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_unusable_cache_does_not_prevent_loading(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_text("a file where the directory should be")
    monkeypatch.setenv("SELFISH_RNN_CACHE", str(tmp_path / "occupied"))
    assert len(load_corpus(make_folder()).vocabulary) == 6
    monkeypatch.setattr(loading, "cache_path", lambda texts, tokenizer: None)
    assert len(load_corpus(make_folder()).vocabulary) == 6
