"""Every test here has a cache of its own and no network; the user's real folders are never touched."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

GIVEN_DATA = os.environ.get("SELFISH_RNN_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("SELFISH_RNN_CACHE", str(directory))
    monkeypatch.delenv("SELFISH_RNN_DATA", raising=False)

    def closed(address: str, timeout: float) -> None:
        raise OSError("the network is closed in tests")

    monkeypatch.setattr(urllib.request, "urlopen", closed)
    return directory


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    beside_repository = Path(__file__).resolve().parents[3] / "shared" / "data"
    for candidate in (Path(GIVEN_DATA) if GIVEN_DATA else None, beside_repository):
        if candidate is not None and candidate.is_dir():
            monkeypatch.setenv("SELFISH_RNN_DATA", str(candidate))
            return candidate
    pytest.skip(f"PTB and WikiText-2 are neither in $SELFISH_RNN_DATA nor in {beside_repository}")


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(train: str = "a b\nb c\n", valid: str = "c d\n", test: str = "a e\n", name: str = "texts") -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for split, text in (("train", train), ("valid", valid), ("test", test)):
            (folder / f"{split}.txt").write_bytes(text.encode())
        return folder

    return make
