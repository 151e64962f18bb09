"""Writing files so that neither a kill nor a full disk can damage what is already there."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from selfish_rnn.errors import UserError

_PARTIAL = ".partial"

_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk is full (your quota is used up)", "free some space"),
    errno.EROFS: ("the disk is read-only", "make it writable"),
    errno.EACCES: ("permission denied", "make it writable"),
    errno.EPERM: ("permission denied", "make it writable"),
}


@contextmanager
def clear_write_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the file system while writing ``path`` into one line a person can act on."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        if number is None:
            raise
        reason, remedy = _REASONS.get(number, (os.strerror(number).lower(), "put that right"))
        raise UserError(
            f"cannot write {path}: {reason}; nothing already written is lost: {remedy}, "
            "then continue with `selfish-rnn resume`"
        ) from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors writes in Rust and hands the cause on as text only.
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None


def remove_partial(folder: Path, name: str = "") -> None:
    """Remove what a killed process left half-written in ``folder``, for one file ``name`` or for all."""
    prefix = f".{name}." if name else "."
    for entry in os.listdir(folder):
        if entry.startswith(prefix) and entry.endswith(_PARTIAL):
            shutil.rmtree(folder / entry, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes ``path`` in one step, or vanishes if the writer fails.

    Example::

        with replacing(folder / "weights.safetensors") as temporary:
            save_file(tensors, temporary)
    """
    with clear_write_errors(path):
        remove_partial(path.parent, path.name)
        # A folder and not only a file: safetensors puts a temporary of its own beside the path it is given.
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_PARTIAL, dir=path.parent))
        try:
            temporary = folder / path.name
            temporary.touch()
            mode = temporary.stat().st_mode & 0o777
            yield temporary
            # safetensors makes files only their owner can read, whatever the umask says.
            os.chmod(temporary, mode)
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no way to ask for this
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Make ``data`` the content of ``path``: after a kill at any moment it is the old content or the new."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def append(path: Path, data: bytes) -> None:
    """Add ``data`` to the end of ``path`` and hand it to the operating system; all of it, or on failure nothing."""
    with clear_write_errors(path), open(path, "ab", buffering=0) as file:
        start = file.seek(0, os.SEEK_END)
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[file.write(remaining) or 0 :]
        except OSError:
            with suppress(OSError):
                file.truncate(start)
            raise


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors of any memory layout to a safetensors file; tensors that share memory are written apart.

    Neither atomic nor clear about errors: meant for a path given by :func:`replacing`.
    """
    separate: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise TypeError(f"tensor {name!r} has layout {tensor.layout}; only strided tensors can be saved")
        plain = tensor.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in storages:
            plain = plain.clone()
        storages.add(plain.untyped_storage().data_ptr())
        separate[name] = plain
    # None, because without tensors safetensors 0.8 turns empty metadata into a header it cannot read.
    save_file(separate, path, dict(metadata) or None)
