"""A run folder kept the same in two places: what is trained on another machine is here too, ready to be continued.

A run may be killed at any moment in either place, and the copy must be one that ``resume`` can continue. A checkpoint
is taken only whole, and everything else after it: records that are newer than the checkpoint are cut off on resume,
while a checkpoint that is newer than its records would lose some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from selfish_rnn.files import write_atomically

CHECKPOINTS = "checkpoints"
ATTEMPTS = 20

Signature = tuple[int, int]
"""Size and time of the last change."""


@dataclass(frozen=True)
class Changes:
    """What happened to a folder since it was looked at before: files with their content, and files that went."""

    written: Mapping[str, bytes] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()


class FolderWatch:
    """Tells what has changed in a folder from call to call.

    >>> watch = FolderWatch(Path("runs/mine"))
    >>> watch.changes().written.keys()
    dict_keys(['checkpoints/step-120.safetensors', 'checkpoints/step-120.json', 'config.yaml', 'metrics.jsonl'])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, Signature] = {}

    def changes(self) -> Changes:
        """What has changed; nothing while checkpoints come and go too fast to take one whole."""
        for _ in range(ATTEMPTS):
            checkpoints = self._files(CHECKPOINTS)
            written = self._contents(checkpoints)
            if written is None or self._files(CHECKPOINTS) != checkpoints:
                continue
            others = {name: one for name, one in self._files(".").items() if not name.startswith(f"{CHECKPOINTS}/")}
            more = self._contents(others)
            if more is None:
                continue
            now = {**checkpoints, **others}
            removed = frozenset(self._known.keys() - now.keys())
            self._known = now
            return Changes({**written, **more}, removed)
        return Changes()

    def _files(self, part: str) -> dict[str, Signature]:
        found = {}
        for path in sorted(_whole_files(self.folder / part)):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found[path.relative_to(self.folder).as_posix()] = (status.st_size, status.st_mtime_ns)
        return found

    def _contents(self, files: Mapping[str, Signature]) -> dict[str, bytes] | None:
        """The content of files that are new or other than before; none if one of them went meanwhile."""
        try:
            return {
                name: (self.folder / name).read_bytes() for name, one in files.items() if self._known.get(name) != one
            }
        except FileNotFoundError:
            return None


def apply(changes: Changes, folder: Path) -> None:
    """Do to a folder what was done to another; killed in between, it is still one that can be continued."""
    for name in sorted(changes.written, key=_order):
        write_atomically(_inside(folder, name), changes.written[name])
    for name in changes.removed:
        _inside(folder, name).unlink(missing_ok=True)


def _order(name: str) -> tuple[bool, bool, str]:
    """What a checkpoint needs comes before it: records, then tensors, then the JSON that makes it one."""
    return name.startswith(f"{CHECKPOINTS}/"), name.endswith(".json"), name


def _whole_files(folder: Path) -> Iterator[Path]:
    """All files but those that are still being written, in folders that begin with a dot."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _whole_files(path)
        else:
            yield path


def _inside(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        raise ValueError(f"{name!r} is no file inside a run folder")
    return folder.joinpath(*parts)
