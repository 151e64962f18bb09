"""Folders of random text and worse: each is loaded, or refused in one line."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from drill import LONGEST_MESSAGE, SCRATCH, FailedError, Outcome, in_children, source

from selfish_rnn.corpora import load_corpus
from selfish_rnn.errors import UserError
from tiny_runs import write_corpus


def drill(tries: int, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="drill-", dir=SCRATCH) as name:
        folder = Path(name)

        def attempt(number: int) -> str:
            chosen = source(seed, number)
            texts = write_corpus(folder / str(number))
            path = texts / f"{chosen.choice(('train', 'valid', 'test'))}.txt"
            CHANGES[number % len(CHANGES)](chosen, path)
            try:
                corpus = load_corpus(texts)
            except UserError as error:
                if len(str(error)) > LONGEST_MESSAGE:
                    raise FailedError(f"a message of {len(str(error))} characters") from error
                return "refused"
            finally:
                os.chmod(texts, 0o700)
                shutil.rmtree(texts, ignore_errors=True)
            words = corpus.vocabulary
            if words.encode(words.decode(corpus.train[:50])) != corpus.train[:50].tolist():
                raise FailedError("words and numbers do not belong together")
            return "loaded"

        return in_children("corpora", tries, seed, attempt, batch=20)


def _bytes(chosen: random.Random, path: Path) -> None:
    path.write_bytes(chosen.randbytes(chosen.randrange(3000)))


def _unicode(chosen: random.Random, path: Path) -> None:
    letters = [chr(chosen.randrange(0x10000)) for _ in range(chosen.randrange(2000))]
    path.write_bytes("".join(letters).encode("utf-8", "ignore"))


def _spaces(chosen: random.Random, path: Path) -> None:
    path.write_text("".join(chosen.choices(" \t\r\n\x0b\x0c\x1c\x85\u2028\u3000\ufeffab", k=chosen.randrange(3000))))


def _other_encoding(chosen: random.Random, path: Path) -> None:
    path.write_bytes(
        path.read_text().replace("a", "ä").encode(chosen.choice(("latin-1", "utf-16", "utf-32", "utf-8-sig")))
    )


def _truncated(chosen: random.Random, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: chosen.randrange(20)])


def _no_file(chosen: random.Random, path: Path) -> None:
    path.unlink()
    chosen.choice((lambda: None, path.mkdir, lambda: os.mkfifo(path)))()


def _link(chosen: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(
        chosen.choice(("/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", str(path), "/nowhere", "/"))
    )


def _long_word(chosen: random.Random, path: Path) -> None:
    path.write_text("a " + "b" * chosen.choice((9_999, 10_000, 10_001, 10**6)) + " c\n")


def _long_line(chosen: random.Random, path: Path) -> None:
    path.write_text("the cat " * chosen.choice((10, 1000, 100_000)))


def _forbidden(chosen: random.Random, path: Path) -> None:
    os.chmod(path if chosen.random() < 0.5 else path.parent, 0)


CHANGES: tuple[Callable[[random.Random, Path], None], ...] = (
    _bytes, _unicode, _spaces, _other_encoding, _truncated, _no_file, _link, _long_word, _long_line, _forbidden,
)  # fmt: skip
