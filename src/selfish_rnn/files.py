"""Files that survive kills and full disks, and detect other damage by checksums."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from selfish_rnn.errors import UserError

_PARTIAL = ".partial"
_CHUNK = 1 << 20
_DESCRIPTION = "selfish_rnn"
_FROM_A_COPY = "restore it from a copy or make it again"

_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk is full (your quota is used up)", "free some space"),
    errno.EROFS: ("the disk is read-only", "make it writable"),
    errno.EACCES: ("permission denied", "make it writable"),
    errno.EPERM: ("permission denied", "make it writable"),
}


class WriteError(UserError):
    """The file system refused to write a file. The previous content is unchanged."""


class ForeignFileError(UserError):
    """The file was not written by :func:`save_tensors`, or is unreadable."""


@contextmanager
def clear_write_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the file system while writing ``path`` into one line with a remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _error_number(error)
        if number is None and isinstance(error, SafetensorError):
            raise WriteError(f"cannot write {path}: {str(error)[:200]}") from error
        if number is None:
            raise
        reason, remedy = _REASONS.get(number, (os.strerror(number).lower(), "put that right"))
        raise WriteError(f"cannot write {path}: {reason}; nothing already written is lost: {remedy}") from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors writes in Rust and hands the cause on as text only.
    match = re.search(r"os error (\d+)", str(error))
    return int(match.group(1)) if match else None


def is_partial(path: Path) -> bool:
    """Return whether a path is a temporary folder of :func:`replacing`."""
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


def remove_partial(folder: Path) -> None:
    """Remove incomplete files that killed processes left in ``folder``; only for its one writer."""
    for path in folder.iterdir():
        if is_partial(path):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. It becomes ``path`` in one step, or is removed if the writer fails.

    Several processes may do so at once: each writes a whole file, and the last one's stays.

    Example::

        with replacing(folder / "weights.safetensors") as temporary:
            save_file(tensors, temporary)
    """
    with clear_write_errors(path):
        make_folder(path.parent)
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


def lock(file: int | IO[bytes]) -> bool:
    """Lock an open file; return False if another process has locked it. The system releases the lock with the process.

    On Windows it does nothing.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder that survives a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no way to ask for this
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``. After a kill at any moment the file has the old content or the new."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON atomically."""
    write_atomically(path, json.dumps(content, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise UserError(f"{path} is not valid JSON: it is nested too deep") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a JSON object")
    return content


def append(path: Path, data: bytes) -> None:
    """Append ``data`` to ``path`` and sync it to disk; after a failure the file is unchanged."""
    new = not path.exists()
    with clear_write_errors(path), open(path, "ab", buffering=0) as file:
        start = file.seek(0, os.SEEK_END)
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[file.write(remaining) or 0 :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(start)
            raise
        if new:
            _sync_folder(path.parent)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors of any memory layout to a safetensors file; tensors that share memory are written separately.

    Neither atomic nor clear about errors: meant for a path given by :func:`replacing`.
    """
    # None, because without tensors safetensors 0.8 turns empty metadata into a header it cannot read.
    save_file(_separate(tensors), path, dict(metadata) or None)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors on the CPU of which no two share memory."""
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
    return separate


def save_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors and text atomically to one safetensors file that carries its own checksum.

    Equal content gives equal bytes. Other programs read it as any safetensors file and ignore the checksum.
    """
    with replacing(Path(path)) as temporary:
        write_safetensors(temporary, tensors, _described(tensors, metadata))


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the content that :func:`save_tensors` writes."""
    return save(_separate(tensors), _described(tensors, metadata))


def _described(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> dict[str, str]:
    plain = dict(metadata or {})
    description = {"sha256": _content_checksum(tensors, plain), "metadata": plain}
    # One entry, because safetensors writes several in an order that changes from run to run.
    return {_DESCRIPTION: json.dumps(description, sort_keys=True)}


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what :func:`save_tensors` wrote: the tensors, on the CPU, and the metadata."""
    try:
        tensors, metadata = read_safetensors(Path(path))
        description = json.loads(metadata[_DESCRIPTION])
        plain = {str(key): str(value) for key, value in dict(description["metadata"]).items()}
        expected: str = description["sha256"]
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: {_FROM_A_COPY}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise ForeignFileError(f"{path} is damaged, or no file that selfish-rnn wrote: {_FROM_A_COPY}") from error
    if expected != _content_checksum(tensors, plain):
        raise UserError(f"{path} is damaged (its checksum does not match): {_FROM_A_COPY}")
    return tensors, plain


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file and its metadata, unchecked."""
    with safe_open(path, framework="pt") as file:
        # Cloned because what safetensors returns may still be a window into the file.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, dict(file.metadata() or {})


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in chunks."""
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
