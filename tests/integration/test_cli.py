"""The command line: what works."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from command_cases import Said, refused, selfish_rnn

from selfish_rnn import files
from selfish_rnn.cli.app import PANELS, app
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS, method_row
from selfish_rnn.experiment.presets import build_experiment, preset_names, read_config, read_preset
from tiny_runs import result_of, stop_after, tiny_run, tiny_words, write_corpus

COMMANDS = (
    "train",
    "resume",
    "sweep",
    "presets",
    "show",
    "methods",
    "evaluate",
    "generate",
    "export",
    "header",
    "report",
    "flops",
    "bench",
    "reproduce",
    "compare",
)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_model_of_an_unfinished_run_is_told_with_its_epoch(texts: Path, tmp_path: Path):
    run = tmp_path / "run"
    stop_after(tiny_run(texts, run), updates=25)
    for words in (("evaluate", run), ("export", run, "--out", tmp_path / "model.safetensors")):
        said = selfish_rnn(*words)
        assert said.code == 0
        assert re.fullmatch(
            rf"note: the run in {run} is not finished; this is its best model so far, of epoch [12] of 3\n", said.err
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
    for row in map(method_row, CONFIGURABLE_METHODS.values()):
        assert re.search(rf"^{row['method']} +{row['allocation']} +{row['removal']} ", said.out, re.MULTILINE)
        assert row["reference"].split(":")[0] in said.out
    assert all(len(line) <= 100 for line in said.out.splitlines())


def test_presets_are_listed_with_what_they_are():
    said = selfish_rnn("presets")
    assert said.code == 0
    for name in preset_names():
        assert re.search(rf"^{name} +\d+ (min|h|days|months) +\w", said.out, re.MULTILINE)


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
        assert re.findall(r"^  (\w+)  ", said.out, re.MULTILINE) == list(COMMANDS)


def test_without_a_command_the_help_is_printed():
    said = selfish_rnn()
    assert said == selfish_rnn("--help")
    assert re.findall(r"^(\w[\w ]+):$", said.out, re.MULTILINE) == [*PANELS, "Options"]


def test_every_option_and_argument_has_a_conventional_metavar():
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            flag = getattr(parameter, "is_flag", False)
            assert flag or re.fullmatch(r"[\w\[\]|=,. -]+", parameter.metavar or ""), (name, parameter.name)
            assert parameter.help, (name, parameter.name)
    assert "<" not in "".join(selfish_rnn(name, "--help").out for name in COMMANDS)


@pytest.mark.parametrize(("words", "expected"), [("tr", {"train"}), ("show ptb-rhn", {"ptb-rhn", "ptb-rhn-small"})])
def test_the_shell_completes_commands_and_presets(words: str, expected: set[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_SELFISH_RNN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"selfish-rnn {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert set(selfish_rnn().out.split()) == expected


@pytest.mark.parametrize("columns", [80, 100])
def test_help_has_a_whole_line_on_each_command(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [line for line in selfish_rnn("--help").out.splitlines() if re.match(r"  \w", line)][1:]
    assert len(lines) == len(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") and len(line) <= columns for line in lines)


def test_ctrl_c_before_training_is_no_traceback(monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("selfish_rnn.experiment.presets.read_preset", interrupted)
    said = selfish_rnn("train")
    assert said.code == 130
    assert said.err == "error: interrupted\n"


@pytest.mark.slow
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
