"""Records of runs are read back, and missing or damaged parts are named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from made_up import record, write_run
from typer.testing import CliRunner

from selfish_rnn.analysis.records import RunRecord, read_run
from selfish_rnn.cli.app import app
from selfish_rnn.errors import UserError
from tiny_runs import tiny_words, write_corpus

RESULTS = Path(__file__).parents[2] / "results"


def test_a_record_comes_back_from_its_folder(tmp_path: Path) -> None:
    made = record("one", test=43.0)
    result = read_run(write_run(tmp_path / "one", made))
    assert result.name == "one"
    assert result.settings == made.settings
    assert list(result.epochs) == list(made.epochs)
    assert result.summary == made.summary
    assert result.corpus == made.corpus
    assert (result.method, result.optimizer, result.seed) == ("selfish", "snt-asgd", 1111)


def test_a_run_that_is_not_finished_has_no_outcome(tmp_path: Path) -> None:
    result = read_run(write_run(tmp_path / "one", record(test=None)))
    assert not result.finished
    assert result.test_perplexity is None
    assert result.valid_perplexity == result.epochs[-1].valid_perplexity


def test_it_tells_where_averaging_starts_and_restarts() -> None:
    assert record(averaging_from=8).averaging_starts == [8]
    assert record(averaging_from=None).averaging_starts == []
    assert record(averaging_from=1).averaging_starts == [1]
    assert record(restart_at=[5, 12]).restarts == [5]  # nothing comes after the twelfth, the last


@pytest.mark.parametrize("folder", sorted(path.parent for path in RESULTS.rglob("config.yaml")), ids=str)
def test_every_committed_result_can_be_read(folder: Path) -> None:
    result = read_run(folder)
    assert result.finished
    assert result.epochs[0].epoch == 1
    assert 0 <= result.epochs[-1].sparsity < 1
    assert result.topologies() == {}


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.yaml", None, "it has no config.yaml"),
        ("config.yaml", "a: [", "is not valid YAML"),
        ("config.yaml", "- 1", "must contain keys and values"),
        ("metrics.jsonl", None, "has no epochs of a finished run"),
        ("metrics.jsonl", "", "has no epochs of a finished run"),
        ("metrics.jsonl", "{oops\n", "line 1"),
        ("metrics.jsonl", '{"epoch": 1}\n', "line 1 of .* has no valid step"),
        ("corpus.json", "{", "is not valid JSON"),
        ("corpus.json", "[]", "must hold a JSON object"),
        ("summary.json", "{}", "no valid test_perplexity"),
    ],
)
def test_what_is_missing_or_damaged_is_named(tmp_path: Path, file: str, text: str | None, message: str) -> None:
    folder = write_run(tmp_path / "one", record())
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        read_run(folder)
    assert str(folder) in str(raised.value)


def test_a_run_in_its_first_epoch_says_how_it_goes_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", record())
    (folder / "metrics.jsonl").unlink()
    (folder / "summary.json").unlink()
    with pytest.raises(UserError, match=r"no epoch of .* is finished yet: selfish-rnn resume .*one, or leave"):
        read_run(folder)


def test_reading_changes_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", record())
    before = {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).digest()) for path in folder.iterdir()}
    read_run(folder).topologies()
    after = {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).digest()) for path in folder.iterdir()}
    assert after == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    base = tmp_path_factory.mktemp("trained")
    words = tiny_words(write_corpus(base / "texts"))
    outcome = CliRunner().invoke(app, ["train", *words, "--run", str(base / "run")])
    assert outcome.exit_code == 0, outcome.output
    return read_run(base / "run")


def test_the_topologies_of_the_best_model_are_read(trained: RunRecord) -> None:
    topologies = trained.topologies()
    assert trained.summary is not None
    assert sum(topology.count for topology in topologies.values()) == trained.summary["active_weights"]
    assert topologies["rnn.weight_ih_l0"].gates.names == ("input", "forget", "candidate", "output")
    assert topologies["rnn.weight_ih_l0"].shape == (32, 8)
    for name, topology in topologies.items():
        assert topology.density == pytest.approx(trained.summary["density"][name]["all"])


def test_a_damaged_model_is_named(trained: RunRecord, tmp_path: Path) -> None:
    assert trained.path is not None
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in ("config.yaml", "metrics.jsonl", "vocabulary.json"):
        (folder / file).write_bytes((trained.path / file).read_bytes())
    (folder / "model.safetensors").write_bytes((trained.path / "model.safetensors").read_bytes()[:100])
    with pytest.raises(UserError, match="damaged"):
        read_run(folder).topologies()
