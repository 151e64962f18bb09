from __future__ import annotations

import hashlib
import http.client
import io
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from selfish_rnn.corpora import known, load_corpus, loading
from selfish_rnn.corpora.corpus import SPLITS
from selfish_rnn.corpora.known import KNOWN, KnownCorpus
from selfish_rnn.errors import UserError

TEXTS = {"train": b"a b\nb c\n", "valid": b"c d\n", "test": b"a e\n"}
SUMS = {split: hashlib.sha256(text).hexdigest() for split, text in TEXTS.items()}


class Mirror:
    """Stands for the network: answers from a dictionary and counts the questions."""

    def __init__(self, texts: dict[str, bytes]) -> None:
        self.texts = texts
        self.asked: list[str] = []

    def open(self, address: str, timeout: float) -> io.BytesIO:
        assert timeout > 0
        self.asked.append(address)
        return io.BytesIO(self.texts[address.rsplit(".", 2)[1]])


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Mirror:
    small = KnownCorpus("ptb", "https://mirror.invalid/ptb.{split}.txt", SUMS)
    monkeypatch.setitem(KNOWN, "ptb", small)
    mirror = Mirror(dict(TEXTS))
    monkeypatch.setattr(urllib.request, "urlopen", mirror.open)
    return mirror


def put(folder: Path, texts: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for split, text in texts.items():
        (folder / f"{split}.txt").write_bytes(text)


def test_downloaded_once(mirror: Mirror, cache: Path) -> None:
    corpus = load_corpus("ptb")
    assert corpus.name == "ptb"
    assert corpus.train.tolist() == [0, 1, 2, 1, 3, 2]
    assert mirror.asked == [f"https://mirror.invalid/ptb.{split}.txt" for split in SPLITS]
    assert load_corpus("ptb").train.equal(corpus.train)
    assert len(mirror.asked) == 3
    assert sorted(path.name for path in (cache / "ptb").iterdir()) == ["test.txt", "train.txt", "valid.txt"]


def test_own_copy_comes_before_cache_and_network(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache / "ptb", {"train": b"not looked at"})
    put(tmp_path / "data" / "ptb", TEXTS)
    monkeypatch.setenv("SELFISH_RNN_DATA", str(tmp_path / "data"))
    load_corpus("ptb")
    assert mirror.asked == []


def test_wrong_sum_of_a_file(mirror: Mirror, cache: Path) -> None:
    put(cache / "ptb", {**TEXTS, "valid": b"tampered"})
    with pytest.raises(UserError) as caught:
        load_corpus("ptb")
    for part in (str(cache / "ptb" / "valid.txt"), SUMS["valid"], hashlib.sha256(b"tampered").hexdigest()):
        assert part in str(caught.value)


def test_wrong_sum_of_a_download_is_not_kept(mirror: Mirror, cache: Path) -> None:
    mirror.texts["valid"] = b"<html>moved</html>"
    with pytest.raises(UserError, match=r"https://mirror\.invalid/ptb\.valid\.txt has the wrong content"):
        load_corpus("ptb")
    assert [path.name for path in (cache / "ptb").iterdir()] == ["train.txt"]


def test_download_survives_an_unwritable_cache(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("")
    monkeypatch.setenv("SELFISH_RNN_CACHE", str(tmp_path / "occupied"))
    assert load_corpus("ptb").train.numel() == 6


@pytest.mark.parametrize(
    "failure",
    [urllib.error.URLError("no route"), TimeoutError("timed out"), http.client.IncompleteRead(b"")],
)
@pytest.mark.parametrize("name", ["ptb", "wikitext-2"])
def test_no_network_says_what_to_put_where(
    name: str, failure: Exception, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(address: str, timeout: float) -> io.BytesIO:
        raise failure

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    with pytest.raises(UserError) as caught:
        load_corpus(name)
    message = str(caught.value)
    assert "\n" not in message
    for split, checksum in KNOWN[name].sums.items():
        assert f"{split}.txt (SHA-256 {checksum})" in message
    assert f"$SELFISH_RNN_DATA/{name}/" in message
    assert str(cache / name) in message


def test_real_opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "mirror", TEXTS)
    monkeypatch.setattr(urllib.request, "urlopen", urllib.request.build_opener().open)
    address = (tmp_path / "mirror").as_uri() + "/{split}.txt"
    assert known.read_known(KnownCorpus("small", address, SUMS)) == TEXTS
    with pytest.raises(UserError, match="cannot be downloaded"):
        known.read_known(KnownCorpus("other", address + ".absent", SUMS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [("ptb", 10_000, (929_589, 73_760, 82_430)), ("wikitext-2", 33_278, (2_088_628, 217_646, 245_569))],
)
def test_real_corpora(
    name: str, size: int, tokens: tuple[int, int, int], real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (real_data / name).is_dir():
        pytest.skip(f"{real_data} has no folder {name}")
    fresh = load_corpus(name)
    assert len(fresh.vocabulary) == size
    assert (fresh.train.numel(), fresh.valid.numel(), fresh.test.numel()) == tokens
    assert fresh.vocabulary.unknown_id is not None
    monkeypatch.delattr(loading, "encode_texts")  # what was encoded once is kept
    kept = load_corpus(name)
    assert kept.vocabulary == fresh.vocabulary
    assert all(getattr(kept, split).equal(getattr(fresh, split)) for split in SPLITS)
