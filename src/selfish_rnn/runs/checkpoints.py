"""Checkpoints: any nested state as safetensors and JSON, with checksums, complete or absent.

A checkpoint of step N is two files. ``step-N.safetensors`` contains the tensors. ``step-N.json`` contains everything
else, with placeholders for tensors. It is written last, so a checkpoint exists exactly when its JSON does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from selfish_rnn import __version__
from selfish_rnn.errors import UserError
from selfish_rnn.files import (
    WriteError,
    clear_write_errors,
    file_checksum,
    make_folder,
    read_safetensors,
    remove_partial,
    replacing,
    write_atomically,
    write_safetensors,
)

FORMAT = 3
"""Version of the format; increase it when earlier checkpoints cannot be resumed."""

_MOST_CHECKPOINTS = 2

# Keys of objects for values that JSON lacks; a mapping that contains such a key is written as pairs.
_TENSOR, _FLOAT, _PAIRS = "$tensor", "$float", "$pairs"

# The checksum covers the bytes of the body and the bytes around it are fixed, so every flipped bit is detected.
_BEFORE, _BETWEEN, _AFTER = b'{"sha256": "', b'", "checkpoint": ', b"}\n"
_BODY = len(_BEFORE) + 64 + len(_BETWEEN)


WRONG_CONTENT = (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError)
"""Exceptions of code that reads data of an unexpected shape or type."""


class DamagedError(Exception):
    """Stored data differs from what was written."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Result of :meth:`CheckpointStore.load`: state, step, and newer checkpoints that were skipped as damaged."""

    state: dict[Any, Any]
    step: int
    damaged: list[str]


class CheckpointStore:
    """The newest two checkpoints of a run, in one folder with one writer.

    State is nested mappings, lists and tuples of tensors, numbers, strings, booleans and ``None``; mapping keys are
    strings or integers. Loading restores everything exactly, including NaN and infinities, with three exceptions:
    tuples become lists, mappings become dicts, and tensors are on the CPU, without gradients or shared memory.

    Example::

        store = CheckpointStore(run / "checkpoints")
        store.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=100)
        loaded = store.load()
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, oldest first, without opening them."""
        return sorted(step for step, _ in self._files(r"step-(\d+)\.json"))

    def save(self, state: Mapping[Any, Any], step: int) -> None:
        """Add a checkpoint; delete all others except the one before, and any later or damaged ones.

        A checkpoint later than ``step`` belongs to an abandoned continuation, for example a damaged one.
        """
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        tensors: dict[str, Tensor] = {}
        encoded = encode(state, "", tensors)
        with clear_write_errors(self.folder):
            make_folder(self.folder)
            remove_partial(self.folder)
        tensors_path = self._free_tensors_path(step)
        with replacing(tensors_path) as temporary:
            write_safetensors(temporary, tensors, {})
            checksum = file_checksum(temporary)
        body = {
            "format": FORMAT,
            "package": __version__,
            "step": step,
            "tensors": {"file": tensors_path.name, "sha256": checksum},
            "state": encoded,
        }
        try:
            write_atomically(self._json_path(step), seal(body))
        except WriteError:
            # On a full disk, remove tensors without a checkpoint. If the JSON exists they may belong to it, because the
            # write can fail after the file is in place.
            if not self._json_path(step).exists():
                with suppress(OSError):
                    os.unlink(tensors_path)
            raise
        self._damaged.discard(step)
        with clear_write_errors(self.folder):
            self._forget_old(step, tensors_path)

    def load(self, use: Callable[[Any], None] | None = None) -> LoadedCheckpoint:
        """Return the newest checkpoint with valid checksums, without changing any file.

        ``use`` receives its state. If it raises an error because of a wrong shape or type, the checkpoint counts as
        damaged. A ``UserError`` from it is passed on.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            path = self._json_path(step)
            try:
                state = self._read(path, step)
                if use is not None:
                    use(state)
            except UserError:
                raise
            except PermissionError as error:
                raise UserError(f"cannot read {error.filename or path}: permission denied") from error
            except (DamagedError, OSError, SafetensorError) as error:
                damaged.append(f"{path.name} ({error})")
                self._damaged.add(step)
            except WRONG_CONTENT as error:
                reason = " ".join(str(error).split())[:200]
                damaged.append(f"{path.name} (its content does not fit this run: {type(error).__name__}, {reason})")
                self._damaged.add(step)
            else:
                return LoadedCheckpoint(state, step, damaged)
        if not damaged:
            raise UserError(
                f"no checkpoint in {self.folder}: the run stopped before its first one, or this is not the folder "
                "of a run; start it with `selfish-rnn train`"
            )
        raise UserError(
            f"every checkpoint in {self.folder} is damaged: {', '.join(damaged)}; restore one from a copy, or start "
            "again with `selfish-rnn train`"
        )

    def _json_path(self, step: int) -> Path:
        return self.folder / f"step-{step}.json"

    def _free_tensors_path(self, step: int) -> Path:
        # Saving a step again must not touch the tensors of the first checkpoint before the new JSON is in place.
        path = self.folder / f"step-{step}.safetensors"
        if self._json_path(step).exists():
            numbers = itertools.count(2)
            while path.exists():
                path = self.folder / f"step-{step}-{next(numbers)}.safetensors"
        return path

    def _files(self, pattern: str) -> list[tuple[int, Path]]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        matches = (re.fullmatch(pattern, name) for name in names)
        return [(int(match.group(1)), self.folder / match.group()) for match in matches if match]

    def _forget_old(self, newest: int, newest_tensors: Path) -> None:
        earlier = [step for step in self.steps() if step < newest and step not in self._damaged]
        retained = {newest, *earlier[-(_MOST_CHECKPOINTS - 1) :]}
        # JSON first: a kill in between leaves unused tensors, never a checkpoint without its tensors.
        for step, path in self._files(r"step-(\d+)\.json"):
            if step not in retained:
                os.unlink(path)
        for step, path in self._files(r"step-(\d+)(?:-\d+)?\.safetensors"):
            if step not in retained or (step == newest and path != newest_tensors):
                os.unlink(path)

    def _read(self, path: Path, step: int) -> dict[Any, Any]:
        body = unseal(path.read_bytes())
        if body["format"] != FORMAT:
            raise UserError(
                f"{path} was written by selfish-rnn {body['package']} in format {body['format']}, this version reads "
                f"format {FORMAT}; install that version to continue the run"
            )
        if body["step"] != step:
            raise DamagedError(f"it is a checkpoint of step {body['step']} under another name")
        tensors_path = self.folder / body["tensors"]["file"]
        if not tensors_path.exists():
            raise DamagedError(f"{tensors_path.name} is missing")
        if file_checksum(tensors_path) != body["tensors"]["sha256"]:
            raise DamagedError(f"the checksum of {tensors_path.name} does not match")
        state: dict[Any, Any] = decode(body["state"], read_safetensors(tensors_path)[0])
        return state


def encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` in a form for JSON, and add its tensors to ``tensors``, named by their path."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, Tensor):
        name = path.removeprefix("/")
        # Different paths can have the same name: the key "a/b", and b inside a.
        while name in tensors or name in ("", "__metadata__"):
            name += "~"
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise TypeError(f"cannot save key {key!r} of {path or '/'}: keys are strings or integers")
        pairs = [(key, encode(item, f"{path}/{key}", tensors)) for key, item in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {_PAIRS: pairs}
    raise TypeError(
        f"cannot save {path or '/'}: {type(value).__name__} is not a tensor, number, string, boolean, None, "
        "list, tuple or mapping"
    )


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo :func:`encode`; tuples become lists."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _FLOAT in value:
        return float(value[_FLOAT])
    pairs = value[_PAIRS] if _PAIRS in value else value.items()
    return {key: decode(item, tensors) for key, item in pairs}


def seal(body: dict[str, Any]) -> bytes:
    """Return ``body`` as JSON with the SHA-256 of its bytes."""
    content = json.dumps(body, allow_nan=False).encode()
    return _BEFORE + hashlib.sha256(content).hexdigest().encode() + _BETWEEN + content + _AFTER


def unseal(data: bytes) -> dict[str, Any]:
    """Return the body of :func:`seal`; raise :class:`DamagedError` for any other bytes."""
    content = data[_BODY : -len(_AFTER)]
    if data != _BEFORE + hashlib.sha256(content).hexdigest().encode() + _BETWEEN + content + _AFTER:
        raise DamagedError("its checksum does not match")
    body: dict[str, Any] = json.loads(content)
    return body
