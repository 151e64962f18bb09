"""The command line: one clear line for what does not work."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_cases import Said, refused, selfish_rnn

from selfish_rnn import files
from tiny_runs import result_of, stop_after, tiny_run, tiny_words, write_corpus


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["quikstart"], "unknown preset 'quikstart' (did you mean 'quickstart'?); known are "),
        (["sparsty=0.5"], "unknown key 'sparsty' (did you mean 'sparsity'?)"),
        (["optimizer.lrr=0.5"], "unknown key 'optimizer.lrr' (did you mean 'optimizer.lr'?)"),
        (["model.hiden=8"], "unknown key 'model.hiden' (did you mean 'model.hidden'?)"),
        (["sparsity=1.2"], "sparsity: must be less than 1, got 1.2"),
        (["sparsity=0.5", "quickstart"], "'quickstart' is not a setting; write key=value"),
        (["model=[stacked-lstm]"], "model: unknown model ['stacked-lstm']"),
        (["corpus=pbt"], "unknown corpus 'pbt'"),
        (["corpus=/nowhere/texts"], "/nowhere/texts does not exist"),
        (["--config", "/nowhere/mine.yaml"], "configuration file /nowhere/mine.yaml does not exist"),
    ],
    ids=str,
)
def test_bad_words_are_refused(tmp_path: Path, words: list[str], expected: str):
    assert expected in refused("train", *words, "--run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--sparsity", "0.9"], "settings are key=value overrides: write sparsity=0.9"),
        (["train", "ptb-rhn", "--lr=3"], "settings are key=value overrides: write optimizer.lr=3"),
        (["train", "--batch-size", "epochs=3"], "write batch_size=VALUE"),
        (["show", "--epoch", "3"], "settings are key=value overrides, such as sparsity=0.9 (did you mean 'epochs'?)"),
        (
            ["generate", "runs/mine", "--promt", "the"],
            "no such option: --promt (did you mean --prompt?); see selfish-rnn",
        ),
        (["generate", "runs/mine", "--tokens", "few"], "--tokens must be an integer; see selfish-rnn generate --help"),
        (["generate", "runs/mine", "--tokens", "0"], "--tokens must be at least 1; see selfish-rnn generate --help"),
        (["export", "runs/mine", "--precision", "int4"], "--precision must be one of float32, int8, got 'int4'; see"),
        (["resume", "runs/mine", "--engine", "fast"], "--engine must be one of masked, packed, got 'fast'; see"),
        (["bench", "--batch", "many"], "--batch must be an integer, got 'many'"),
        (["bench", "--speed", "3"], "no such option: --speed"),
        (["trian"], "no such command 'trian' (did you mean 'train'?); see selfish-rnn --help"),
        (["sweep"], "missing argument 'FILE'; see selfish-rnn sweep --help"),
        (["train", "epochs=many"], "epochs: must be an integer, got 'many'"),
        (["train", "engine=fast"], "engine: must be auto, masked or packed, got 'fast'"),
        (["report", "/nowhere"], "/nowhere does not exist"),
    ],
    ids=str,
)
def test_a_wrong_command_is_one_line_with_the_right_form(words: list[str], expected: str):
    assert expected in refused(*words)


def test_a_run_is_measured_on_its_own_texts_only(finished: tuple[Path, Said], texts: Path):
    line = refused("evaluate", finished[0], "--corpus", texts)
    assert (
        f"--corpus is for exported models, and a run is measured on its own texts: `selfish-rnn export {finished[0]} "
        in line
    )


def test_a_report_of_a_folder_is_of_the_runs_in_it(finished: tuple[Path, Said], texts: Path, tmp_path: Path):
    shutil.copytree(finished[0], tmp_path / "runs" / "one")
    (tmp_path / "runs" / "notes").mkdir()
    assert "contains none" in refused("report", tmp_path / "runs" / "notes")
    stop_after(tiny_run(texts, tmp_path / "runs" / "two"), 4)
    page = tmp_path / "report.html"
    said = selfish_rnn("report", tmp_path / "runs", "--out", page)
    assert said.code == 0
    assert said.err == "note: skipped runs without a finished epoch: two\n"
    assert "1 run, " in said.out
    assert page.is_file()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.unlink(), "has no valid.txt"),
        (lambda path: path.write_bytes(b""), "valid.txt is empty"),
        (lambda path: path.write_bytes(b" \n"), "valid.txt is empty"),
        (
            lambda path: path.write_bytes(b"caf\xe9 au lait\n" * 30),
            "valid.txt is not UTF-8 text: byte 0xe9 at offset 3",
        ),
        (lambda path: path.write_text("one two\n"), "a text of 3 tokens is too short for valid_batch_size=4"),
    ],
    ids=["missing", "empty", "blank", "not UTF-8", "short"],
)
def test_a_bad_corpus_is_refused_before_a_folder_is_made(tmp_path: Path, damage: Callable[[Path], Any], expected: str):
    texts = write_corpus(tmp_path / "texts")
    damage(texts / "valid.txt")
    assert expected in refused("train", *tiny_words(texts), "--run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_and_untouched(texts: Path, run: Path):
    before = result_of(run)
    line = refused("train", *tiny_words(texts, seed=9), "--run", run)
    assert f"{run} already holds a run" in line
    assert f"selfish-rnn resume {run}" in line
    assert result_of(run) == before


@pytest.mark.parametrize("command", [["resume"], ["evaluate"], ["generate", "--prompt", "the"]])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, command: list[str]):
    assert "is not the folder of a run" in refused(*command, tmp_path)


@pytest.mark.parametrize("command", ["evaluate", "generate", "export"])
def test_a_run_without_a_finished_epoch_says_what_to_do(texts: Path, tmp_path: Path, command: str):
    stop_after(tiny_run(texts, tmp_path / "run"), 4)
    assert refused(command, tmp_path / "run") == (
        f"error: no epoch is finished yet: selfish-rnn resume {tmp_path / 'run'}"
    )


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_run_with_only_damaged_checkpoints_is_refused(run: Path):
    for path in (run / "checkpoints").iterdir():
        spoil(path)
    line = refused("resume", run)
    assert "every checkpoint in" in line
    assert "checksum" in line


def test_a_damaged_checkpoint_is_passed_over_with_a_word(run: Path):
    before = result_of(run)
    spoil(run / "checkpoints/step-30.safetensors")
    (run / "summary.json").unlink()
    said = selfish_rnn("resume", run)
    assert said.code == 0
    assert "checkpoint step-30.json (the checksum of step-30.safetensors does not match) is damaged" in said.out
    assert "epoch 3/3" in said.out
    assert result_of(run) == before


def test_a_damaged_model_is_refused(run: Path):
    spoil(run / "model.safetensors")
    for command in (["evaluate"], ["generate", "--prompt", "the"]):
        assert "model.safetensors is damaged" in refused(*command, run)


def test_a_configuration_damaged_since_is_refused(run: Path):
    (run / "config.yaml").write_text("sparsity: 1.5\n")
    assert f"{run}/config.yaml: sparsity: must be less than 1" in refused("evaluate", run)


def test_a_word_the_model_does_not_know_is_refused(finished: tuple[Path, Said]):
    assert "the word 'zebra' is not in the vocabulary" in refused("generate", finished[0], "--prompt", "the zebra")


@pytest.mark.slow
@pytest.mark.parametrize("writes", [0, 1, 3])
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    texts: Path, finished: tuple[Path, Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
):
    left = writes
    save_file = files.save_file

    def fill_up(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(*arguments)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(files, "save_file", fill_up)
        line = refused("train", *tiny_words(texts), "--run", run)
    assert "the disk is full" in line
    assert f"free some space, then continue with `selfish-rnn resume {run}`" in line
    assert selfish_rnn("resume", run).code == 0
    assert result_of(run) == result_of(finished[0])


def test_a_disk_full_from_the_start_is_one_line(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "replace", full)
    assert "the disk is full" in refused("train", *tiny_words(texts), "--run", tmp_path / "run")


def test_a_run_that_diverges_is_one_line_that_says_what_to_change(texts: Path, tmp_path: Path):
    """Whether the loss or a weight is the first that is no number depends on the processor's rounding."""
    model = {"name": "stacked-rnn", "embedding": 8, "hidden": 8, "layers": 2}
    optimizer = {"name": "sgd", "lr": 1e6, "weight_decay": 1e6}
    words = tiny_words(texts, model=model, optimizer=optimizer, clip=None, sparsity=0.1)
    said = selfish_rnn("train", *words, "--run", tmp_path / "run")
    assert said.code == 3
    first = r"(the training loss became \S+ at|\S+ contains NaN or infinity after) update \d; "
    assert re.match(f"error: training diverged: {first}", said.err)
    assert "optimizer.lr (now 1e+06)" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_a_weight_that_overflows_is_one_line_that_names_it_and_what_is_kept(texts: Path, tmp_path: Path, engine: str):
    """Weight decay that multiplies; cells saturate, so that the loss stays a number."""
    model = {"name": "stacked-rnn", "embedding": 8, "hidden": 8, "layers": 2}
    optimizer = {"name": "sgd", "lr": 1e6, "weight_decay": 1e6}
    changes = {"engine": engine, "sparsity": 0.9, "model": model, "optimizer": optimizer, "checkpoint_every": 1e-9}
    said = selfish_rnn("train", *tiny_words(texts, **changes), "--run", tmp_path / "run")
    assert said.code == 3
    assert said.err.startswith(
        "error: training diverged: embedding.weight contains NaN or infinity after update 4; the last good "
        "checkpoint, of update 3, is kept. Try a smaller optimizer.lr (now 1e+06)"
    )


def test_nothing_that_a_file_says_controls_the_terminal(texts: Path, tmp_path: Path):
    """Words of a vocabulary, and names of a corpus and a run: an escape sequence may write into the clipboard."""
    hostile = "\x1b]52;c;aGVsbG8=\x07"
    folder = write_corpus(tmp_path / f"texts{hostile}")
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("cat", hostile))
    run, file = tmp_path / f"run{hostile}", tmp_path / "model.safetensors"
    told = [
        selfish_rnn("train", *tiny_words(folder, epochs=1), "--run", run),
        selfish_rnn("export", run, "--out", file),
        *(selfish_rnn("generate", source, "--prompt", hostile, "--tokens", 40) for source in (run, file)),
        selfish_rnn("evaluate", tmp_path / f"no{hostile}"),
    ]
    assert [said.code for said in told] == [0, 0, 0, 0, 2]
    assert not any(character in said.out + said.err for said in told for character in "\x1b\x07")
    assert "\\x1b]52" in told[2].out


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path):
    texts = write_corpus(tmp_path / "[bold]:key:s")
    run = tmp_path / "[red]:cat:"
    said = selfish_rnn("train", *tiny_words(texts, epochs=1), "--run", run)
    assert said.code == 0
    assert "on [bold]:key:s" in said.out
    assert f"The run is in {run}." in said.out
    assert said.out.count(str(run)) == 5
    assert f"{run} already holds a run" in refused("train", *tiny_words(texts, epochs=1), "--run", run)
