"""A folder and its copy elsewhere."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn import __version__
from selfish_rnn.errors import UserError
from selfish_rnn.scheduling.ray_cluster import FOLDER, Changes, FolderWatch, NodeRun, apply

NAMES = ("config.yaml", "metrics.jsonl", "events/one", "checkpoints/step-1.safetensors", "checkpoints/step-1.json")


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


@given(st.lists(st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.binary(max_size=4)), max_size=4), max_size=4))
def test_after_every_look_the_copy_is_the_folder(rounds: list[list[tuple[str, bytes | None]]]) -> None:
    top = Path(tempfile.mkdtemp())
    source, copy = top / "source", top / "copy"
    watch = FolderWatch(source)
    for number, changes in enumerate(rounds):
        for name, data in changes:
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if data is None:
                path.unlink(missing_ok=True)
            else:  # in real life a second passes; here sizes tell rounds apart
                path.write_bytes(data + b"." * number)
        apply(watch.changes(), copy)
        assert content(copy) == content(source) if source.exists() else not copy.exists()
    shutil.rmtree(top)


def test_what_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / ".model.x.partial").mkdir()
    (tmp_path / ".model.x.partial" / "model").write_bytes(b"half")
    (tmp_path / "model").write_bytes(b"whole")
    assert FolderWatch(tmp_path).changes() == Changes({"model": b"whole"})


def test_a_checkpoint_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step-1.json").write_bytes(b"1")
    (folder / "step-1.safetensors").write_bytes(b"1")

    class Overtaken(FolderWatch):
        """A run that writes its next checkpoint while the first look reads this one."""

        looks = 0

        def _contents(self, files):  # type: ignore[no-untyped-def]
            self.looks += 1
            if self.looks == 1:
                for end in ("json", "safetensors"):
                    (folder / f"step-1.{end}").unlink()
                    (folder / f"step-2.{end}").write_bytes(b"2")
            return super()._contents(files)

    watch = Overtaken(tmp_path)
    assert watch.changes().written.keys() == {"checkpoints/step-2.json", "checkpoints/step-2.safetensors"}


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", ""])
def test_nothing_is_written_outside_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a file inside a run folder"):
        apply(Changes({name: b"x"}), tmp_path / "copy")


def test_another_version_on_a_node_is_refused() -> None:
    with pytest.raises(UserError, match=r"the node has selfish-rnn .* and the scheduler 0\.0\.0: install the same"):
        NodeRun().begin("0.0.0", [], Changes(), {})


WORDS = ["model.hidden=4", "model.embedding=4", "train_tokens=4000", "epochs=4", "engine=masked", "threads=1", "--run"]


@pytest.mark.slow
def test_a_run_whose_node_is_lost_goes_on_from_the_copy(tmp_path: Path) -> None:
    """Without a cluster: the class a node runs, with a process that is killed in the middle."""

    def train(copy: Path, words: list[str], kill: bool) -> int | None:
        node = NodeRun()
        code, _, _ = node.begin(__version__, words, FolderWatch(copy).changes(), {})
        while code is None:
            code, said, changes = node.report(0.05)
            apply(changes, copy)
            if kill and (copy / "checkpoints").is_dir() and any((copy / "checkpoints").glob("*.json")):
                node.send_signal(signal.SIGKILL)
                kill = False
        assert said is not None
        return code

    whole, copy = tmp_path / "whole", tmp_path / "copy"
    assert train(whole, ["train", *WORDS, FOLDER], kill=False) == 0
    assert train(copy, ["train", *WORDS, FOLDER], kill=True) == -signal.SIGKILL
    assert not (copy / "summary.json").exists()
    assert train(copy, ["resume", FOLDER], kill=False) == 0
    assert (copy / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
