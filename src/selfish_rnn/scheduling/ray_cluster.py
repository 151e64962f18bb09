"""Runs on a Ray cluster, their folders mirrored here."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any

from selfish_rnn import __version__
from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.scheduling.scheduler import SELFISH_RNN, Job, Process, start_process

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


LOCAL = "local"
SYNC_SECONDS = 2.0
"""How often a folder is brought up to date while its run is trained."""

LOST = -signal.SIGKILL
"""What a process ends with whose machine is lost."""

_PR_SET_PDEATHSIG = 1

_PLACE = "\0folder"
"""Stands for the run folder in a command that another machine is to run."""

News = tuple[int | None, bytes, Changes]
"""Of a process on a node: its code if it has ended, what it said, what it wrote."""


class RayCluster:
    """Launches jobs of the scheduler on the nodes of a Ray cluster.

    ``address`` is that of a cluster, ``auto`` for the one this machine belongs to, or ``local`` for one that is made of
    this machine and goes with the process. The nodes need the same version of this package and what the runs read:
    known corpora are found or downloaded there, and ``SELFISH_RNN_DATA`` and ``SELFISH_RNN_CACHE`` are passed on.

    Example::

        with RayCluster("local") as cluster:
            run(sweep.jobs(), workers=cluster.processors, launch=cluster.launch)
    """

    def __init__(self, address: str) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise UserError("--ray needs Ray: pip install 'selfish-rnn[ray]'") from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns of its own change of mind
        quiet = {"log_to_driver": False, "logging_level": "error"}
        if self._ray.is_initialized():
            return
        try:
            if address == LOCAL:
                self._ray.init(include_dashboard=False, **quiet)
            else:
                self._ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"no Ray cluster at {address!r}: {reason:.200}; start one with `ray start --head`"
            ) from None

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    @property
    def processors(self) -> int:
        """How many processors the nodes have together."""
        return max(int(self._ray.cluster_resources().get("CPU", 1)), 1)

    def launch(self, job: Job, log: IO[bytes]) -> Process:
        """The command of a job on whichever node has a free processor; its folder and its log follow here."""
        return _RemoteProcess(self._ray, job, log)


class _RemoteProcess:
    """A run that is trained on some node, as the scheduler sees it."""

    def __init__(self, ray: Any, job: Job, log: IO[bytes]) -> None:
        self._ray, self._folder = ray, job.folder
        self._held = ExitStack()
        # The process that inherits it is on another machine, so the lock lasts as long as this object.
        self._log = self._held.enter_context(os.fdopen(os.dup(log.fileno()), "ab", buffering=0))
        command = job.command()[len(SELFISH_RNN) :]
        job.folder.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(RunFolder(job.folder).locked())
        words = [_PLACE if word == str(job.folder) else word for word in command]
        passed_on = {key: value for key, value in os.environ.items() if key.startswith("SELFISH_RNN_")}
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(NodeRun).remote()
        self._answer = self._actor.begin.remote(__version__, words, FolderWatch(job.folder).changes(), passed_on)
        self._code: int | None = None

    def poll(self) -> int | None:
        ready = self._ray.wait([self._answer], timeout=0)[0] if self._code is None else []
        if ready:
            try:
                code, said, changes = self._ray.get(self._answer)
            except self._ray.exceptions.RayError as error:
                self._end(_code_of(error, self._log))
            else:
                self._log.write(said)
                apply(changes, self._folder)
                if code is None:
                    self._answer = self._actor.news.remote(SYNC_SECONDS)
                else:
                    self._end(code)
        return self._code

    def send_signal(self, number: int, /) -> None:
        if self._code is None:
            self._actor.send_signal.remote(number)

    def _end(self, code: int) -> None:
        self._code = code
        self._ray.kill(self._actor)
        self._held.close()


def _code_of(error: Exception, log: IO[bytes]) -> int:
    """A node that is gone is a run to be started again; what went wrong in starting it is told, and would again."""
    cause = getattr(error, "cause", None)
    told = str(cause if isinstance(cause, UserError) else error).strip().splitlines() or [type(error).__name__]
    log.write(f"{told[-1]}\n".encode())
    return 2 if isinstance(cause, UserError) else LOST


class NodeRun:
    """A run on a node, in a folder that nobody else knows: begun or continued from the files it is given."""

    def begin(self, version: str, words: Sequence[str], files: Changes, environment: Mapping[str, str]) -> News:
        """Start the process; what it says and writes is told by :meth:`news`."""
        if version != __version__:
            raise UserError(f"the node has selfish-rnn {__version__}, and the scheduler {version}: install the same")
        os.environ.update(environment)
        self._top = Path(tempfile.mkdtemp(prefix="selfish-rnn-"))
        self._folder, self._log, self._told = self._top / "run", self._top / "log", 0
        apply(files, self._folder)
        self._watch = FolderWatch(self._folder)
        self._watch.changes()  # what the scheduler has already
        here = [str(self._folder) if word == _PLACE else word for word in words]
        with open(self._log, "wb") as log:
            self._process = start_process([*SELFISH_RNN, *here], log, _die_with_parent)
        return None, b"", Changes()

    def news(self, seconds: float) -> News:
        """After at most so many seconds: the code if the process has ended, and what it said and wrote since."""
        try:
            code: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        changes = self._watch.changes()
        with open(self._log, "rb") as log:
            log.seek(self._told)
            said = log.read()
        self._told += len(said)
        if code is not None:
            shutil.rmtree(self._top, ignore_errors=True)
        return code, said, changes

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)


def _die_with_parent() -> None:
    """On Linux a process is killed when the one that started it is: nobody would collect what it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
