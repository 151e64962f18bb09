"""The command line: what works, and one clear line for what does not."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from selfish_rnn import cli, files
from selfish_rnn.experiment.configured_methods import CONFIGURED_METHODS
from selfish_rnn.experiment.presets import build_experiment, preset_names, read_config, read_preset
from tiny_runs import result_of, stop_after, tiny_run, tiny_words, write_corpus

COMMANDS = (
    "train",
    "resume",
    "evaluate",
    "generate",
    "export",
    "presets",
    "show",
    "methods",
    "bench",
    "flops",
    "header",
    "report",
    "reproduce",
    "sweep",
)


class Said(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


def selfish_rnn(*words: object) -> Said:
    """Run ``selfish-rnn`` with these words in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["selfish-rnn", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
    return Said(int(left.value.code or 0), out.getvalue(), err.getvalue())


def refused(*words: object) -> str:
    """The one line with which the command refuses these words."""
    said = selfish_rnn(*words)
    assert said.code == 2, said
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in said.out
    return lines[0]


@pytest.fixture(scope="module")
def finished(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """A tiny run from the command line, and what it said; do not change its files."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    said = selfish_rnn("train", *tiny_words(texts), "--run", run)
    assert said.code == 0, said
    return run, said


@pytest.fixture
def run(finished: tuple[Path, Said], tmp_path: Path) -> Path:
    """A copy of the finished run, to be damaged."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


# What works


def test_training_tells_its_story(finished: tuple[Path, Said]):
    run, said = finished
    assert said.err == ""
    text = " ".join(said.out.split())
    summary = json.loads((run / "summary.json").read_text())
    story = [
        "stacked-lstm on texts",
        "408 training tokens, 19 words",
        f"{summary['active_weights']:,} of {summary['total_weights']:,} weights exist (sparsity 60 %)",
        f"run folder {run}",
        "epoch 1/3 train ",
        "epoch 3/3 train ",
        f"test perplexity {summary['test_perplexity']:.2f}",
        f"valid perplexity {summary['valid_perplexity']:.2f}",
        f"unigram perplexity {summary['unigram_perplexity']:.2f}",
        f"weights {summary['active_weights']:,}",
        "sparsity, %",
        "matrix all input forget candidate output",
        f"The run is in {run}.",
        "What to try next:",
        f"selfish-rnn generate {run} --prompt",
        f"tensorboard --logdir {run}",
        f"selfish-rnn train --config {run}/config.yaml method=static",
    ]
    for part in story:
        _, found, text = text.partition(part)
        assert found, f"{part!r} is missing, or not where it should be"


def test_the_summary_has_what_programs_ask_for(finished: tuple[Path, Said]):
    summary = json.loads((finished[0] / "summary.json").read_text())
    assert {
        "test_perplexity", "valid_perplexity", "unigram_perplexity", "active_weights", "total_weights", "seconds"
    } <= set(summary)  # fmt: skip


def test_the_configuration_of_a_run_is_complete(finished: tuple[Path, Said], texts: Path):
    config = yaml.safe_load((finished[0] / "config.yaml").read_text())
    assert config["corpus"] == str(texts)
    assert config["threads"] == 1
    assert config["optimizer"]["weight_decay"] == 1.2e-6
    assert config["method"]["removal"] == "magnitude"


@pytest.mark.slow
def test_its_configuration_trains_the_same_network_again(finished: tuple[Path, Said], tmp_path: Path):
    assert selfish_rnn("train", "--config", finished[0] / "config.yaml", "--run", tmp_path / "again").code == 0
    assert result_of(tmp_path / "again") == result_of(finished[0])


def test_evaluation_repeats_the_summary(finished: tuple[Path, Said]):
    summary = json.loads((finished[0] / "summary.json").read_text())
    said = selfish_rnn("evaluate", finished[0])
    assert said == Said(
        0,
        "".join(f"{kind} perplexity {summary[f'{kind}_perplexity']:.2f}\n" for kind in ("valid", "test", "unigram")),
        "",
    )


def test_generated_text_is_the_same_for_the_same_seed(finished: tuple[Path, Said]):
    words = ("generate", finished[0], "--prompt", "the cat", "--tokens", 12)
    first = selfish_rnn(*words, "--seed", 1)
    assert first.code == 0
    assert first.out.startswith("the cat")
    assert len(first.out.removesuffix("\n").replace("\n", " <eos> ").split()) == 2 + 12
    assert selfish_rnn(*words, "--seed", 1) == first
    assert selfish_rnn(*words, "--seed", 2) != first


def test_without_a_prompt_a_sentence_is_begun(finished: tuple[Path, Said]):
    said = selfish_rnn("generate", finished[0], "--tokens", 5, "--seed", 1)
    assert (said.code, said.err) == (0, "")
    assert len(said.out.removesuffix("\n").replace("\n", " <eos> ").split()) == 5


def test_an_exported_model_generates_what_the_run_does(
    finished: tuple[Path, Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    said = selfish_rnn("export", finished[0])
    assert said.code == 0
    assert re.match(r"tiny\.safetensors: 0\.0 MiB\n  selfish-rnn generate tiny\.safetensors", said.out)
    assert selfish_rnn("export", finished[0], "--out", tmp_path / "deeper" / "mine.safetensors").code == 0
    words = ("--prompt", "the cat", "--tokens", 8, "--temperature", 0)
    expected = selfish_rnn("generate", finished[0], *words)
    for path in ("tiny.safetensors", tmp_path / "deeper" / "mine.safetensors"):
        assert selfish_rnn("generate", path, *words) == expected


@pytest.mark.parametrize(
    "changes", [{}, {"train_tokens": 200}, {"vocabulary": 5}, {"train_tokens": 200, "vocabulary": 5}]
)
def test_an_exported_model_is_measured_as_its_run_was(texts: Path, tmp_path: Path, changes: dict[str, Any]):
    run, file = tmp_path / "run", tmp_path / "model.safetensors"
    assert selfish_rnn("train", *tiny_words(texts, epochs=1, **changes), "--run", run).code == 0
    assert selfish_rnn("export", run, "--out", file).code == 0
    summary = json.loads((run / "summary.json").read_text())
    said = selfish_rnn("evaluate", file)
    assert said.out.splitlines() == [
        f"{kind} perplexity {summary[f'{kind}_perplexity']:.2f}" for kind in ("valid", "test", "unigram")
    ]
    assert selfish_rnn("evaluate", run) == said


def test_words_are_not_counted_in_a_text_that_is_not_known_to_be_that_of_the_run(
    finished: tuple[Path, Said], texts: Path, tmp_path: Path
):
    file, other = tmp_path / "model.safetensors", write_corpus(tmp_path / "other", train_lines=50)
    assert selfish_rnn("export", finished[0], "--out", file).code == 0
    assert "unigram" in selfish_rnn("evaluate", file, "--corpus", texts).out, "named, and the same"
    said = selfish_rnn("evaluate", file, "--corpus", other)
    assert said.code == 0
    assert [line.split()[0] for line in said.out.splitlines()] == ["valid", "test"]
    tensors, metadata = files.load_tensors(file)
    del metadata["training"]  # as earlier versions wrote it
    files.save_tensors(file, tensors, metadata)
    assert [line.split()[0] for line in selfish_rnn("evaluate", file).out.splitlines()] == ["valid", "test"]


def test_the_model_of_an_unfinished_run_is_told_with_its_epoch(texts: Path, tmp_path: Path):
    run = tmp_path / "run"
    stop_after(tiny_run(texts, run), updates=25)
    for words in (("evaluate", run), ("export", run, "--out", tmp_path / "model.safetensors")):
        said = selfish_rnn(*words)
        assert said.code == 0
        assert re.fullmatch(
            rf"note: the run in {run} is not finished: this is its best model so far, of epoch [12] of 3\n", said.err
        )
        assert "note" not in said.out
    assert selfish_rnn("resume", run).code == 0
    assert selfish_rnn("evaluate", run).err == ""


def test_what_is_no_exported_model_is_not_called_damaged(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    line = refused("generate", tmp_path / "notes.txt")
    assert "notes.txt is not an exported model: make one with `selfish-rnn export RUN`" in line
    assert "damaged" not in line


def test_the_methods_are_shown_with_their_references():
    said = selfish_rnn("methods")
    assert said.code == 0
    for row in (configured.row() for configured in CONFIGURED_METHODS.values()):
        assert re.search(rf"^{row['method']} +{row['allocation']} +{row['removal']} ", said.out, re.MULTILINE)
        assert row["reference"].split(":")[0] in said.out
    assert all(len(line) <= 100 for line in said.out.splitlines())


def test_presets_are_listed_with_what_they_are():
    said = selfish_rnn("presets")
    assert said.code == 0
    for name in preset_names():
        assert re.search(rf"^{name} +\w", said.out, re.MULTILINE)


@pytest.mark.parametrize("name", preset_names())
def test_a_shown_preset_is_a_configuration_file(name: str, tmp_path: Path):
    said = selfish_rnn("show", name)
    assert said.code == 0
    path = tmp_path / "shown.yaml"
    path.write_text(said.out)
    settings, about = read_preset(name)
    assert said.out.startswith(f"# {about}\n")
    assert build_experiment(read_config(path), "shown") == build_experiment(settings, name)


@pytest.mark.slow
def test_runs_get_the_next_free_folder(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "mine.yaml"
    config.write_text("epochs: 1\n")
    words = tiny_words(texts, epochs=1)
    assert selfish_rnn("train", *words).code == 0
    assert selfish_rnn("train", "quickstart", *words).code == 0
    assert selfish_rnn("train", *words, "--config", config).code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine-1", "quickstart-1", "quickstart-2"]


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)])
def test_help_is_there(words: list[str]):
    said = selfish_rnn(*words, "--help")
    assert said.code == 0
    assert "Usage: selfish-rnn" in said.out
    if not words:
        assert re.findall(r"^  (\w+)  ", said.out.partition("Commands:")[2], re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("columns", [80, 100])
def test_help_has_a_whole_line_on_each_command(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = selfish_rnn("--help").out.partition("Commands:\n")[2].splitlines()
    assert len(lines) == len(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") and len(line) <= columns for line in lines)


def test_ctrl_c_before_training_is_no_traceback(monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("selfish_rnn.experiment.presets.read_preset", interrupted)
    said = selfish_rnn("train")
    assert said.code == 130
    assert said.err == "error: interrupted\n"


def test_a_second_ctrl_c_ends_with_one_line_and_the_run_goes_on(texts: Path, tmp_path: Path):
    def twice(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selfish_rnn.runs.recording.RunRecorder._save", twice)
        said = selfish_rnn("train", *tiny_words(texts), "--run", run)
    assert said.code == 130
    assert said.err == "error: interrupted\n"
    assert selfish_rnn("resume", run).code == 0


# Bad input


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


def test_a_loss_that_is_not_a_number_is_one_line_that_says_what_to_change(texts: Path, tmp_path: Path):
    model = {"name": "stacked-rnn", "embedding": 8, "hidden": 8, "layers": 2}
    optimizer = {"name": "sgd", "lr": 1e6, "weight_decay": 1e6}
    words = tiny_words(texts, model=model, optimizer=optimizer, clip=None, sparsity=0.1)
    said = selfish_rnn("train", *words, "--run", tmp_path / "run")
    assert said.code == 3
    assert said.err.startswith("error: training diverged: the training loss became nan at update 3; ")
    assert "optimizer.lr (now 1e+06)" in said.err


@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_a_weight_that_overflows_is_one_line_that_names_it_and_what_is_kept(texts: Path, tmp_path: Path, engine: str):
    """Weight decay that multiplies; cells saturate, so that the loss stays a number."""
    model = {"name": "stacked-rnn", "embedding": 8, "hidden": 8, "layers": 2}
    optimizer = {"name": "sgd", "lr": 1e6, "weight_decay": 1e6}
    changes = {"engine": engine, "sparsity": 0.9, "model": model, "optimizer": optimizer, "checkpoint_every": 1e-9}
    said = selfish_rnn("train", *tiny_words(texts, **changes), "--run", tmp_path / "run")
    assert said.code == 3
    assert said.err.startswith(
        "error: training diverged: embedding.weight has entries that are no numbers after update 4; the last good "
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
