"""Files of a run that are damaged, of another run, or made to mislead."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from selfish_rnn.cli.app import app
from selfish_rnn.corpora import Vocabulary, known, load_corpus
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.runs.checkpoints import CheckpointStore, seal, unseal
from selfish_rnn.runs.export import Precision, export, load_model
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.run import Run
from selfish_rnn.training.evaluation import generate
from selfish_rnn.training.metrics import Listener
from tiny_runs import Recorder, finished_run, result_of, stop_after, tiny_run


@pytest.fixture(scope="module")
def finished(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    finished_run(texts, path)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


# corpus.json, metrics.jsonl


@pytest.mark.parametrize("content", [b"x", b"", b"[]", b"{}", b'"', b"\xff", b"[" * 100_000, b"3", b'{"sha256": 3'])
def test_a_damaged_corpus_json_is_one_clear_error(run: Path, content: bytes) -> None:
    (run / "corpus.json").write_bytes(content)
    with pytest.raises(UserError, match=r"corpus\.json is damaged.*restore the file from a copy"):
        _ = Run.open(run).corpus


def test_a_run_goes_on_when_its_damaged_corpus_json_is_removed(run: Path) -> None:
    (run / "corpus.json").write_bytes(b"x")
    with pytest.raises(UserError, match="remove the file and continue"):
        _ = Run.open(run).corpus
    (run / "corpus.json").unlink()
    Run.open(run).train()  # as the message says


def test_a_folder_in_place_of_corpus_json_is_one_clear_error(run: Path) -> None:
    (run / "corpus.json").unlink()
    (run / "corpus.json").mkdir()
    with pytest.raises(UserError, match=r"corpus\.json is damaged"):
        _ = Run.open(run).corpus


def test_a_record_too_deep_to_parse_is_a_damaged_line(run: Path) -> None:
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b"[" * 100_000 + b"\n")
    with pytest.raises(UserError, match=r"line 4 of .*metrics\.jsonl is not a JSON object"):
        RunFolder(run).metrics.read()


# Checkpoints


def rewritten(run: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The newest checkpoint with other content under a checksum that holds."""
    path = max((run / "checkpoints").glob("step-*.json"), key=lambda found: int(found.stem.partition("-")[2]))
    body = unseal(path.read_bytes())
    given = change(body)
    path.write_bytes(seal(body if given is None else given))
    return path


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no state": lambda body: body.pop("state") and None,
    "state a number": lambda body: body.update(state=3),
    "no format": lambda body: body.pop("format") and None,
    "a list": lambda body: [body],
    "tensors a number": lambda body: body.update(tensors=3),
    "no trainer": lambda body: body["state"].pop("trainer") and None,
    "step a word": lambda body: body["state"]["trainer"]["state"].update(step="ten"),
    "step negative": lambda body: body["state"]["trainer"]["state"].update(step=-10),
    "unknown key": lambda body: body["state"]["trainer"]["state"].update(other=1),
    "hidden short": lambda body: body["state"]["trainer"].update(hidden=[]),
    "random none": lambda body: body["state"]["trainer"].update(random=None),
    "weights none": lambda body: body["state"]["trainer"].update(model={}),
    "optimizer none": lambda body: body["state"]["trainer"].update(optimizer={}),
    "tensor unknown": lambda body: body["state"]["trainer"]["random"][0]["cpu"].update({"$tensor": "nothing"}),
    "experiment a word": lambda body: body["state"].update(experiment="lstm"),
    "threads a word": lambda body: body["state"].update(threads="one"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_of_wrong_content_falls_back_to_the_one_before(
    texts: Path, tmp_path: Path, finished: Path, change: str
) -> None:
    path = tmp_path / "run"
    stop_after(tiny_run(texts, path), 25)
    assert len(CheckpointStore(path / "checkpoints").steps()) == 2
    name = rewritten(path, CHANGES[change]).name
    notes: list[str] = []

    class Notes(Listener):
        def on_note(self, message: str) -> None:
            notes.append(message)

    Run.open(path).train(Notes())
    assert any(name in note and "is damaged; going back" in note for note in notes)
    assert result_of(path) == result_of(finished)


# Models


def test_a_model_of_another_run_is_noticed(texts: Path, run: Path, tmp_path: Path) -> None:
    finished_run(texts, tmp_path / "other", seed=6)
    shutil.copy(tmp_path / "other" / "model.safetensors", run / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors is the model of a run with other settings"):
        Run.open(run).model()
    with pytest.raises(UserError, match="a run with other settings"):
        export(Run.open(run), tmp_path / "x.safetensors")


def test_a_model_may_be_used_with_settings_that_decide_nothing(texts: Path, run: Path) -> None:
    config = (run / "config.yaml").read_text().replace("threads: 1", "threads: 2")
    (run / "config.yaml").write_text(config)
    Run.open(run).model()


EXPORTED: dict[str, tuple[Callable[[dict[str, str]], Any], str]] = {
    "no JSON": (lambda about: about.update(model="x"), "is damaged|contains an unknown model"),
    "a list": (lambda about: about.update(model="[1]"), "is damaged|contains an unknown model"),
    "a number": (lambda about: about.update(model="3"), "is damaged|contains an unknown model"),
    "deep": (lambda about: about.update(model="[" * 100_000), "is damaged|contains an unknown model"),
    "unknown model": (lambda about: about.update(model='{"name": ["x"]}'), "contains an unknown model"),
    "unknown key": (lambda about: _model(about, depth=3), "unknown key 'depth'"),
    "wrong type": (lambda about: _model(about, hidden="x"), "hidden: must be"),
    "absurd": (lambda about: _model(about, hidden=10**9), "hidden: must be at most 1000000"),
    "gigantic": (lambda about: _model(about, hidden=10**6, embedding=10**6), "does not fit the model"),
    "other words": (lambda about: about.update(vocabulary='{"tokenizer": "x"}'), "tokens of a vocabulary"),
}


def _model(about: dict[str, str], **changes: Any) -> None:
    about["model"] = json.dumps({**json.loads(about["model"]), **changes})


@pytest.mark.parametrize("change", EXPORTED)
@pytest.mark.parametrize("packed", [True, False])
def test_an_exported_file_of_wrong_content_is_one_clear_error(
    finished: Path, tmp_path: Path, change: str, packed: bool
) -> None:
    path = tmp_path / "x.safetensors"
    export(Run.open(finished), path)
    tensors, about = load_tensors(path)
    edit, message = EXPORTED[change]
    edit(about)
    save_tensors(path, tensors, about)
    with pytest.raises(UserError, match=message):
        load_model(path, packed=packed)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8])
def test_weights_of_another_type_do_not_fit(finished: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "x.safetensors"
    export(Run.open(finished), path)
    tensors, about = load_tensors(path)
    save_tensors(path, {name: tensor.to(dtype) for name, tensor in tensors.items()}, about)
    with pytest.raises(UserError, match=r"does not fit the model|is damaged"):
        load_model(path)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_weights_of_another_shape_do_not_fit(
    finished: Path, tmp_path: Path, packed: bool, precision: Precision
) -> None:
    path = tmp_path / "x.safetensors"
    export(Run.open(finished), path, precision=precision)
    tensors, about = load_tensors(path)
    name = next(name for name in tensors if name.endswith(".values"))
    for wrong in (tensors[name].unsqueeze(0), tensors[name][:-1]):
        save_tensors(path, {**tensors, name: wrong}, about)
        with pytest.raises(UserError, match=r"does not fit the model|is damaged"):
            load_model(path, packed=packed)


# Generating


@pytest.mark.parametrize("temperature", [float("inf"), float("nan"), -1.0])
def test_a_temperature_that_is_none_is_refused(finished: Path, temperature: float) -> None:
    run = Run.open(finished)
    with pytest.raises(UserError, match="temperature must be"):
        generate(run.model(), run.vocabulary, "", tokens=2, temperature=temperature)


@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e300])
def test_any_temperature_draws_words(finished: Path, temperature: float) -> None:
    run = Run.open(finished)
    assert generate(run.model(), run.vocabulary, "", tokens=2, temperature=temperature, seed=1)


@pytest.mark.parametrize("seed", [-1, 2**63, 10**5000], ids=["negative", "64 bits", "thousands of digits"])
def test_a_seed_beyond_64_bits_is_refused(finished: Path, seed: int) -> None:
    run = Run.open(finished)
    with pytest.raises(UserError, match="seed must be a number from 0 to"):
        generate(run.model(), run.vocabulary, "", tokens=2, seed=seed)


def test_scores_that_are_no_numbers_are_told(finished: Path) -> None:
    run = Run.open(finished)
    model = run.model()
    for weight in model.parameters():
        weight.data.fill_(torch.nan)
    with pytest.raises(UserError, match="scores of the model are NaN"):
        generate(model, run.vocabulary, "", tokens=2)


# Corpora


def test_a_pipe_or_a_device_is_no_text(texts: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(texts, tmp_path / "texts"))
    (folder / "valid.txt").unlink()
    os.mkfifo(folder / "valid.txt")
    with pytest.raises(UserError, match=r"valid\.txt: it is not a file of text"):
        load_corpus(folder)
    (folder / "valid.txt").unlink()
    (folder / "valid.txt").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"valid\.txt: it is not a file of text"):
        load_corpus(folder)


def test_a_gigantic_word_is_told(texts: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(texts, tmp_path / "texts"))
    (folder / "test.txt").write_text("a " + "b" * 10**6)
    with pytest.raises(UserError, match="a word of 1000000 characters, 'bbb") as caught:
        load_corpus(folder)
    assert len(str(caught.value)) < 300


def test_a_dripping_download_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            for _ in range(500):
                if done.is_set():
                    return
                try:
                    connection.sendall(b"x")
                except OSError:
                    return
                time.sleep(0.02)

    thread = threading.Thread(target=drip)
    thread.start()
    monkeypatch.setattr(known, "TOTAL_SECONDS", 0.2)
    monkeypatch.setenv("SELFISH_RNN_DATA", "")
    monkeypatch.setenv("SELFISH_RNN_CACHE", str(tmp_path))
    mirror = f"http://127.0.0.1:{server.getsockname()[1]}/{{split}}"
    try:
        with pytest.raises(UserError, match=r"cannot be downloaded \(not complete after 0\.2 seconds\)"):
            known.read_known(known.KnownCorpus("dripping", mirror, known.PTB.sums))
    finally:
        done.set()
        thread.join()
        server.close()


def test_a_second_process_leaves_a_running_run_as_it_is(texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"

    def intrude(_: object) -> None:
        if recorder.trainer.state.step in (11, 15, 25):  # records of epochs that the newest checkpoint knows, and not
            if recorder.trainer.state.step == 25:  # as a kill right after the start leaves it
                (path / "corpus.json").unlink()
            before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
            with pytest.raises(UserError, match="another process is training the run"):
                Run.open(path).train()
            assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before

    recorder = Recorder(intrude)
    tiny_run(texts, path).train(recorder)
    assert [record.epoch for record in RunFolder(path).metrics.read()] == [1, 2, 3]


# vocabulary.json


def exchange_words(path: Path) -> None:
    content = json.loads(path.read_text())
    content["tokens"][:2] = reversed(content["tokens"][:2])
    path.write_text(json.dumps(content))


def without_checksum(path: Path) -> None:
    """Exchange two words in the form of earlier versions, which had no checksum."""
    exchange_words(path)
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps(content))


VOCABULARY_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "two words exchanged": exchange_words,
    "two words exchanged, no checksum": without_checksum,
    "empty": lambda path: path.write_bytes(b""),
    "not UTF-8": lambda path: path.write_bytes(b"\xff"),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "no object": lambda path: path.write_bytes(b"3"),
    "of another run": lambda path: Vocabulary(("<eos>", *map(str, range(18)))).save(path),
}


@pytest.mark.parametrize("damage", VOCABULARY_DAMAGE)
@pytest.mark.parametrize("command", ["resume", "evaluate", "generate", "export", "report"])
def test_a_damaged_vocabulary_is_refused_by_every_command(run: Path, tmp_path: Path, damage: str, command: str) -> None:
    VOCABULARY_DAMAGE[damage](run / "vocabulary.json")
    words = [command, str(run), *(["--out", str(tmp_path / "out.html")] if command in ("export", "report") else [])]
    with pytest.raises(UserError, match=r"vocabulary.*(restore it from a copy, or remove it and corpus\.json)"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("damage", VOCABULARY_DAMAGE)
def test_a_run_resumes_when_its_damaged_vocabulary_and_corpus_json_are_removed(run: Path, damage: str) -> None:
    before = (run / "vocabulary.json").read_bytes()
    VOCABULARY_DAMAGE[damage](run / "vocabulary.json")
    for name in ("vocabulary.json", "corpus.json"):
        (run / name).unlink(missing_ok=True)
    Run.open(run).train()
    assert (run / "vocabulary.json").read_bytes() == before


def test_a_vocabulary_of_an_earlier_version_is_read(run: Path) -> None:
    content = json.loads((run / "vocabulary.json").read_text())
    del content["sha256"]
    (run / "vocabulary.json").write_text(json.dumps(content))
    opened = Run.open(run)
    assert opened.corpus.vocabulary == opened.vocabulary == opened.model().vocabulary
