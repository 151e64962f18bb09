"""Kills and failing writes at any moment of a save leave a store that loads."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_cases import state_of, store_of, visible

from selfish_rnn.errors import UserError

# Every process forked below kills itself at one moment of a save; the next one later, until one survives.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from selfish_rnn import files
from selfish_rnn.runs.checkpoints import CheckpointStore

def moments(last):
    passed = 0
    def moment(*_):
        nonlocal passed
        passed += 1
        if passed == last:
            os.kill(os.getpid(), signal.SIGKILL)
    def around(function):
        def patched(*arguments, **options):
            moment()
            result = function(*arguments, **options)
            moment()
            return result
        return patched
    def half_written(tensors, path, metadata):
        save_file(tensors, path, metadata)
        whole = Path(path).read_bytes()
        Path(path).write_bytes(whole[: len(whole) // 2])
        Path(path).with_name(".tmpOfSafetensors").write_bytes(b"x")
        moment()
        Path(path).write_bytes(whole)
    save_file = files.save_file
    files.save_file = half_written
    for name in ("replace", "fsync", "unlink", "rmdir", "mkdir", "chmod"):
        setattr(os, name, around(getattr(os, name)))

def state(step):
    return {"step": step, "weights": torch.full((50,), float(step))}

root, before, saved = Path(sys.argv[1]), [int(step) for step in sys.argv[2].split()], int(sys.argv[3])
outcomes, moment = [], 0
while not outcomes or outcomes[-1][0] != 0:
    moment += 1
    folder = root / str(moment)
    for step in before:
        CheckpointStore(folder).save(state(step), step)
    child = os.fork()
    if child == 0:
        moments(moment)
        CheckpointStore(folder).save({**state(saved), "again": True}, saved)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    loaded = CheckpointStore(folder).load()
    assert loaded.damaged == [], loaded
    assert loaded.state["weights"].eq(float(loaded.step)).all() and loaded.state["step"] == loaded.step
    new = loaded.state.get("again", False)
    assert loaded.step == (saved if new else before[-1]), (moment, loaded.step)
    outcomes.append((status, new))
    CheckpointStore(folder).save(state(99), 99)
    assert CheckpointStore(folder).load().step == 99
    assert not [name for name in os.listdir(folder) if name.startswith(".")], os.listdir(folder)
    shutil.rmtree(folder)
assert all(status == signal.SIGKILL for status, _ in outcomes[:-1]), outcomes
committed = [new for _, new in outcomes]
assert committed == sorted(committed) and committed[-1] and not committed[0], committed
print(len(outcomes), committed.count(True))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "saved"), [("1 2", 3), ("2", 2)], ids=["next step", "same step again"])
def test_a_kill_at_any_moment_leaves_a_loadable_store(tmp_path: Path, before: str, saved: int) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), before, str(saved)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    total, committed = map(int, result.stdout.split())
    assert total > 20
    assert 2 < committed < total - 5


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace", "mkdir"])
def test_a_full_disk_is_said_clearly_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = store_of(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full_disk)
        with pytest.raises(UserError, match=r"/step-2[^/]*: the disk is full; nothing .* lost: free some space$"):
            store.save(state_of(2), 2)
    assert visible(tmp_path) == ["step-1.json", "step-1.safetensors"]
    assert store.load().step == 1
    store.save(state_of(2), 2)
    assert store.load().step == 2


def test_a_write_the_kernel_refuses_midway_loses_nothing(tmp_path: Path) -> None:
    """The limit on file size stops safetensors' own writer partway, as a full disk does."""
    store = store_of(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError, match=r"write [^ .]*/step-2\.safetensors: file too large"):
            store.save({"weights": torch.zeros(100_000)}, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert visible(tmp_path) == ["step-1.json", "step-1.safetensors"]


def test_tensors_without_their_json_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path, 1)
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(UserError, match=r"/step-2\.json: the disk is full"):
        store.save(state_of(2), 2)
    assert visible(tmp_path) == ["step-1.json", "step-1.safetensors"]


@pytest.mark.parametrize("saved", [1, 2])
def test_a_failure_of_any_sync_leaves_whole_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: int
) -> None:
    for failing in range(1, 5):
        store = store_of(tmp_path / str(failing), 1)
        calls = iter(range(1, 100))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _, n=failing, calls=calls: full_disk() if next(calls) == n else None)
            with pytest.raises(UserError, match="the disk is full"):
                store.save(state_of(saved), saved)
        assert store.load().damaged == []


def test_files_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    store_of(tmp_path, 1)
    (tmp_path / "plain").touch()
    assert len({(tmp_path / name).stat().st_mode for name in visible(tmp_path)}) == 1
