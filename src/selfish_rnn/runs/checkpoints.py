"""Checkpoints: any nested state as safetensors + JSON, checksummed, and never half there.

A checkpoint of step N is two files. ``step-N.safetensors`` holds the tensors. ``step-N.json`` holds everything
else, with a placeholder where a tensor was; it is written last, so a checkpoint exists exactly when its JSON does.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from selfish_rnn.errors import UserError
from selfish_rnn.files import (
    clear_write_errors,
    remove_partial,
    replacing,
    write_atomically,
    write_safetensors,
)
from selfish_rnn.runs.encoding import DamagedError, decode, encode, seal, unseal

FORMAT = 1
_KEPT = 2
_CHUNK = 1 << 20
_DESCRIPTION = "selfish_rnn"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What :meth:`CheckpointStore.load` found: the state, its step, and newer checkpoints passed over as damaged."""

    state: dict[Any, Any]
    step: int
    damaged: list[str]


class CheckpointStore:
    """The newest two checkpoints of a run, in one folder with one writer.

    State is nested mappings, lists and tuples of tensors, numbers, strings, booleans and ``None``; mapping keys are
    strings or integers. Everything comes back exactly, NaN and infinities included, except that tuples come back as
    lists, mappings as dicts, and tensors on the CPU, without gradients, each with memory of its own.

    Example::

        store = CheckpointStore(run / "checkpoints")
        store.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=100)
        loaded = store.load()
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Steps of the checkpoints that were completely written, oldest first; none is opened."""
        return sorted(step for step, _ in self._files(r"step-(\d+)\.json"))

    def save(self, state: Mapping[Any, Any], step: int) -> None:
        """Add a checkpoint; then forget all but it and the one before, and any later or damaged ones.

        A checkpoint later than ``step`` belongs to a future that was given up, as when it turned out damaged.
        """
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        tensors: dict[str, Tensor] = {}
        encoded = encode(state, "", tensors)
        with clear_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_partial(self.folder)
        tensors_path = self._free_tensors_path(step)
        with replacing(tensors_path) as temporary:
            write_safetensors(temporary, tensors, {})
            checksum = _file_checksum(temporary)
        body = {
            "format": FORMAT,
            "package": _package_version(),
            "step": step,
            "tensors": {"file": tensors_path.name, "sha256": checksum},
            "state": encoded,
        }
        try:
            write_atomically(self._json_path(step), seal(body))
        except UserError:
            # On a full disk tensors that belong to no checkpoint only take the space that is missing. With a JSON
            # there they may belong to it: the failure can come after it was put in place.
            if not self._json_path(step).exists():
                with suppress(OSError):
                    os.unlink(tensors_path)
            raise
        self._damaged.discard(step)
        with clear_write_errors(self.folder):
            self._forget_old(step, tensors_path)

    def load(self) -> LoadedCheckpoint:
        """Return the newest checkpoint whose checksums hold; nothing on disk is changed."""
        damaged: list[str] = []
        for step in reversed(self.steps()):
            path = self._json_path(step)
            try:
                state = self._read(path, step)
            except PermissionError as error:
                raise UserError(f"cannot read {error.filename or path}: permission denied") from error
            except (DamagedError, OSError, SafetensorError) as error:
                damaged.append(f"{path.name} ({error})")
                self._damaged.add(step)
            else:
                return LoadedCheckpoint(state, step, damaged)
        if not damaged:
            raise UserError(
                f"no checkpoint in {self.folder}: the run stopped before its first one, or this is not the folder "
                "of a run; start it with `selfish-rnn train`"
            )
        raise UserError(
            f"every checkpoint in {self.folder} is damaged: {', '.join(damaged)}; restore one from a copy or start "
            "again with `selfish-rnn train`"
        )

    def _json_path(self, step: int) -> Path:
        return self.folder / f"step-{step}.json"

    def _free_tensors_path(self, step: int) -> Path:
        # Saving a step a second time must not touch the tensors of the first before the new JSON stands.
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
        kept = {newest, *earlier[-(_KEPT - 1) :]}
        # JSON first: a kill in between leaves tensors nobody refers to, not a checkpoint without its tensors.
        for step, path in self._files(r"step-(\d+)\.json"):
            if step not in kept:
                os.unlink(path)
        for step, path in self._files(r"step-(\d+)(?:-\d+)?\.safetensors"):
            if step not in kept or (step == newest and path != newest_tensors):
                os.unlink(path)

    def _read(self, path: Path, step: int) -> dict[Any, Any]:
        body = unseal(path.read_bytes())
        if body["format"] != FORMAT:
            raise UserError(
                f"{path} was written by selfish-rnn {body['package']} in format {body['format']}, this version reads "
                f"format {FORMAT}; install that version to continue the run"
            )
        if body["step"] != step:
            raise DamagedError(f"is a checkpoint of step {body['step']} under another name")
        tensors_path = self.folder / body["tensors"]["file"]
        if not tensors_path.exists():
            raise DamagedError(f"{tensors_path.name} is missing")
        if _file_checksum(tensors_path) != body["tensors"]["sha256"]:
            raise DamagedError(f"the checksum of {tensors_path.name} does not match")
        state: dict[Any, Any] = decode(body["state"], _read_safetensors(tensors_path)[0])
        return state


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors and text atomically to one safetensors file that carries its own checksum.

    Equal content gives equal bytes. Other programs read it as any safetensors file and ignore the checksum.
    """
    plain = dict(metadata or {})
    description = {"sha256": _content_checksum(tensors, plain), "metadata": plain}
    with replacing(Path(path)) as temporary:
        # One entry, because safetensors writes several in an order that changes from run to run.
        write_safetensors(temporary, tensors, {_DESCRIPTION: json.dumps(description, sort_keys=True)})


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what :func:`save_tensors` wrote: the tensors, on the CPU, and the metadata."""
    remedy = "restore it from a copy or train again"
    try:
        tensors, metadata = _read_safetensors(Path(path))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: {remedy}") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged or cannot be read ({error}): {remedy}") from error
    try:
        description = json.loads(metadata[_DESCRIPTION])
        plain: dict[str, str] = description["metadata"]
        whole = description["sha256"] == _content_checksum(tensors, plain)
    except (KeyError, ValueError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise UserError(f"{path} is damaged (its checksum does not match): {remedy}")
    return tensors, plain


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        # Cloned because what safetensors returns may still be a window into the file.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, dict(file.metadata() or {})


def _file_checksum(path: Path) -> str:
    checksum = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest()


def _content_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    checksum = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        checksum.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        checksum.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return checksum.hexdigest()


def _package_version() -> str:
    try:
        return importlib.metadata.version("selfish-rnn")
    except importlib.metadata.PackageNotFoundError:  # used from a source tree
        return "unknown"
