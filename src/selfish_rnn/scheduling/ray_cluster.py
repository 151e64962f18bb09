"""Runs on a Ray cluster, with copies of their folders on this machine."""

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
"""Size and modification time of a file."""


@dataclass(frozen=True)
class Changes:
    """Changes to a folder: content of written files by path, and paths of removed files."""

    written: Mapping[str, bytes] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()


class FolderWatch:
    """Reports the changes to a folder since the previous call.

    >>> watch = FolderWatch(Path("runs/mine"))
    >>> watch.changes().written.keys()
    dict_keys(['checkpoints/step-120.safetensors', 'checkpoints/step-120.json', 'config.yaml', 'metrics.jsonl'])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, Signature] = {}

    def changes(self) -> Changes:
        """Return the changes; return none while checkpoints change too fast to read a complete one."""
        for _ in range(ATTEMPTS):
            checkpoints = self._files(CHECKPOINTS)
            written = self._contents(checkpoints)
            if written is None or self._files(CHECKPOINTS) != checkpoints:
                continue
            others = {
                name: signature
                for name, signature in self._files(".").items()
                if not name.startswith(f"{CHECKPOINTS}/")
            }
            more = self._contents(others)
            if more is None:
                continue
            now = {**checkpoints, **others}
            removed = frozenset(self._known.keys() - now.keys())
            self._known = now
            return Changes({**written, **more}, removed)
        return Changes()

    def _files(self, part: str) -> dict[str, Signature]:
        signatures = {}
        for path in sorted(_whole_files(self.folder / part)):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            signatures[path.relative_to(self.folder).as_posix()] = (status.st_size, status.st_mtime_ns)
        return signatures

    def _contents(self, files: Mapping[str, Signature]) -> dict[str, bytes] | None:
        """Return the content of new and changed files, or None if one of them vanished meanwhile."""
        try:
            return {
                name: (self.folder / name).read_bytes()
                for name, signature in files.items()
                if self._known.get(name) != signature
            }
        except FileNotFoundError:
            return None


def apply(changes: Changes, folder: Path) -> None:
    """Apply changes to a copy of the folder. The copy can be resumed even if this is interrupted."""
    for name in sorted(changes.written, key=_order):
        write_atomically(_inside(folder, name), changes.written[name])
    for name in changes.removed:
        _inside(folder, name).unlink(missing_ok=True)


def _order(name: str) -> tuple[bool, bool, str]:
    """Sort key: records first, then the tensors of checkpoints, then the JSON that completes a checkpoint."""
    return name.startswith(f"{CHECKPOINTS}/"), name.endswith(".json"), name


def _whole_files(folder: Path) -> Iterator[Path]:
    """Yield all files except incomplete ones, which are in folders that begin with a dot."""
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
        raise ValueError(f"{name!r} is not a file inside a run folder")
    return folder.joinpath(*parts)


LOCAL = "local"
SYNC_SECONDS = 2.0
"""Seconds between updates of a folder during training."""

LOST = -signal.SIGKILL
"""Exit code of a process whose machine is lost."""

_PR_SET_PDEATHSIG = 1

FOLDER = "\0folder"
"""Placeholder of the run folder in a command for another machine."""

NodeReport = tuple[int | None, bytes, Changes]
"""Report of a process on a node: exit code if it has ended, output, and changes to its folder."""


class RayCluster:
    """Launches jobs of the scheduler on the nodes of a Ray cluster.

    ``address`` is the address of a cluster, ``auto`` for the cluster of this machine, or ``local`` for a new one on
    this machine that ends with the process. All nodes need the same version of this package and access to the corpora:
    known corpora are looked up or downloaded there, with ``SELFISH_RNN_DATA`` and ``SELFISH_RNN_CACHE`` of this
    process.

    Example::

        with RayCluster("local") as cluster:
            run(sweep.jobs(), workers=cluster.processors, launch=cluster.launch)
    """

    def __init__(self, address: str) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise UserError("--ray needs Ray: pip install 'selfish-rnn[ray]'") from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns about a future default
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
        """Number of processors of all nodes."""
        return max(int(self._ray.cluster_resources().get("CPU", 1)), 1)

    def launch(self, job: Job, log: IO[bytes]) -> Process:
        """Run the command of a job on a node with a free processor; copy its folder and log to this machine."""
        return _RemoteProcess(self._ray, job, log)


class _RemoteProcess:
    """A run on a node, with the interface that the scheduler needs."""

    def __init__(self, ray: Any, job: Job, log: IO[bytes]) -> None:
        self._ray, self._folder = ray, job.folder
        self._resources = ExitStack()
        # The process runs on another machine and cannot inherit the lock, so this object holds it.
        self._log = self._resources.enter_context(os.fdopen(os.dup(log.fileno()), "ab", buffering=0))
        command = job.command()[len(SELFISH_RNN) :]
        job.folder.mkdir(parents=True, exist_ok=True)
        self._resources.enter_context(RunFolder(job.folder).locked())
        words = [FOLDER if word == str(job.folder) else word for word in command]
        passed_on = {key: value for key, value in os.environ.items() if key.startswith("SELFISH_RNN_")}
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(NodeRun).remote()
        self._answer = self._actor.begin.remote(__version__, words, FolderWatch(job.folder).changes(), passed_on)
        self._code: int | None = None

    def poll(self) -> int | None:
        ready = self._ray.wait([self._answer], timeout=0)[0] if self._code is None else []
        if ready:
            try:
                code, output, changes = self._ray.get(self._answer)
            except self._ray.exceptions.RayError as error:
                self._end(_exit_code(error, self._log))
            else:
                self._log.write(output)
                apply(changes, self._folder)
                if code is None:
                    self._answer = self._actor.report.remote(SYNC_SECONDS)
                else:
                    self._end(code)
        return self._code

    def send_signal(self, number: int, /) -> None:
        if self._code is None:
            self._actor.send_signal.remote(number)

    def _end(self, code: int) -> None:
        self._code = code
        self._ray.kill(self._actor)
        self._resources.close()


def _exit_code(error: Exception, log: IO[bytes]) -> int:
    """Return the exit code for an error, and log the error.

    A lost node counts as a killed process, which is restarted. An error at the start would repeat, so it counts as a
    failure.
    """
    cause = getattr(error, "cause", None)
    lines = str(cause if isinstance(cause, UserError) else error).strip().splitlines() or [type(error).__name__]
    log.write(f"{lines[-1]}\n".encode())
    return 2 if isinstance(cause, UserError) else LOST


class NodeRun:
    """A run on a node in a temporary folder, started or resumed from the files it receives."""

    def begin(self, version: str, words: Sequence[str], files: Changes, environment: Mapping[str, str]) -> NodeReport:
        """Start the process; :meth:`report` returns its output and changes."""
        if version != __version__:
            raise UserError(
                f"the node has selfish-rnn {__version__} and the scheduler {version}: install the same version"
            )
        os.environ.update(environment)
        self._top = Path(tempfile.mkdtemp(prefix="selfish-rnn-"))
        self._folder, self._log, self._reported = self._top / "run", self._top / "log", 0
        apply(files, self._folder)
        self._watch = FolderWatch(self._folder)
        self._watch.changes()  # the scheduler has these files already
        here = [str(self._folder) if word == FOLDER else word for word in words]
        with open(self._log, "wb") as log:
            self._process = start_process([*SELFISH_RNN, *here], log, _die_with_parent)
        return None, b"", Changes()

    def report(self, seconds: float) -> NodeReport:
        """Wait at most ``seconds`` for the end of the process; return what is new since the last report."""
        try:
            code: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        changes = self._watch.changes()
        with open(self._log, "rb") as log:
            log.seek(self._reported)
            output = log.read()
        self._reported += len(output)
        if code is not None:
            shutil.rmtree(self._top, ignore_errors=True)
        return code, output, changes

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)


def _die_with_parent() -> None:
    """Kill this process with its parent, on Linux, because no other process would collect its results."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
