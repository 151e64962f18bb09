"""The command from end to end, with networks so small that it takes seconds; no time is ever asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from selfish_rnn import cli
from selfish_rnn.bench import bench as benchmark
from selfish_rnn.bench import engines, measurements, rivals
from selfish_rnn.engine import library
from selfish_rnn.models import LanguageModel

pytestmark = pytest.mark.slow

SIZES = ("--hidden", "20", "--vocabulary", "30", "--batch", "3", "--window", "4", "--rounds", "3", "--threads", "1")

needs_kernels = pytest.mark.skipif(not library.available(), reason="the kernels are not built")


@pytest.fixture(autouse=True)
def _single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "SHORTEST", 0.0)


def bench(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run ``selfish-rnn bench`` with these words in this process; the exit code."""
    monkeypatch.setattr("sys.argv", ["selfish-rnn", "bench", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def written(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    return result


@pytest.mark.slow
@needs_kernels
def test_everything_is_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    words = (*SIZES, "--sparsity", "0.9", "--engines", "packed,csr", "--out", str(tmp_path / "new" / "folder"))
    assert bench(monkeypatch, *words) == 0
    result = written(tmp_path / "new" / "folder")
    assert result["complete"] is True
    assert result["command"].startswith("selfish-rnn bench --hidden 20")
    assert result["machine"]["threads"] == 1
    assert result["machine"]["kernels"] == library.target()
    assert {"processor", "cores", "torch", "python", "selfish_rnn", "system", "busy"} <= set(result["machine"])
    assert result["settings"]["hidden"] == [20]
    assert result["settings"]["engines"] == ["dense", "csr", "packed"]
    rows = result["rows"]
    assert [row["ideal"] for row in rows] == pytest.approx([10] * len(rows))
    assert {row["kind"]: list(row["engines"]) for row in rows} == {
        "step": ["dense", "packed"],
        "inference": ["dense", "csr", "packed"],
        "operators": ["dense", "csr", "packed"],
        "memory": ["dense", "packed"],
    }
    for row in rows:
        for name, engine in row["engines"].items():
            if row["kind"] == "memory":
                assert row["baseline"] is None
                assert 0 < engine["imports"] <= engine["process"]
                assert 0 < engine["training"] <= engine["process"]
            else:
                assert len(engine["seconds"]) == len(engine["ratios"]) == 3
                assert engine["lowest"] <= engine["ratio"] <= engine["highest"]
                assert row["baseline"] == "dense"
                assert name != "dense" or engine["ratios"] == [1, 1, 1]
    assert not any("does not compute" in note for note in result["notes"])
    names = {row["title"] for row in rows if row["kind"] == "operators"}
    products = ("forward", "input gradient", "weight gradient", "both gradients")
    assert names == {f"{product}, {n} columns" for product in products for n in (12, 3)}
    said = capsys.readouterr().out
    for part in (
        "training step, lstm 20, sparsity 0.9: dense torch (baseline) ",
        "1/(1-S)",
        "torch CSR",
        "MiB",
    ):
        assert part in said
    assert (tmp_path / "new" / "folder" / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("network", ["lstm", "rhn", "on-lstm"])
@pytest.mark.parametrize("optimizer", ["adam", "snt-asgd"])
def test_networks_and_optimizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, optimizer: str):
    words = ("--network", network, "--optimizer", optimizer, "--sparsity", "0.5,0.8", "--what", "step,inference")
    words = (*words, "--engines", "no-onednn,bfloat16,masked,packed")
    assert bench(monkeypatch, *SIZES, *words, "--out", str(tmp_path)) == 0
    result = written(tmp_path)
    assert [row["network"] for row in result["rows"]] == [network] * 4
    assert [row["sparsity"] for row in result["rows"]] == [0.5, 0.8, 0.5, 0.8]
    assert not any("does not compute" in note for note in result["notes"])


def test_dense_rivals_are_built_once_for_all_sparsities_of_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    built = list[tuple[str, int]]()
    make = rivals.next_word

    def counted(engine: str, model: LanguageModel, words: Tensor) -> Any:
        built.append((engine, model.embedding.embedding_dim))
        return make(engine, model, words)

    monkeypatch.setattr("selfish_rnn.bench.workloads.next_word", counted)
    words = ("--what", "inference", "--engines", "no-onednn,csr", "--sparsity", "0.5,0.8", "--hidden", "20,30")
    assert bench(monkeypatch, *SIZES[2:], *words, "--out", str(tmp_path)) == 0
    entry = [("dense", 20), ("no-onednn", 20), ("csr", 20), ("dense", 20), ("csr", 20)]
    assert built == [*entry, *((engine, 30) for engine, _ in entry)]
    assert all(list(row["engines"]) == ["dense", "no-onednn", "csr"] for row in written(tmp_path)["rows"])


@pytest.mark.slow
@needs_kernels
def test_wider_networks_have_as_many_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = ("--what", "width", "--widths", "20,70", "--sparsity", "0.5", "--out", str(tmp_path))
    assert bench(monkeypatch, *SIZES, *words) == 0
    rows = written(tmp_path)["rows"]
    assert [row["width"] for row in rows] == [20, 70]
    positions = [2 * 30 * width + 16 * width**2 for width in (20, 70)]
    assert [row["positions"] for row in rows] == positions
    for row in rows:
        assert row["weights"] == pytest.approx(positions[0] / 2, abs=6), "rounded in each of six matrices"
        assert len(row["engines"]["packed"]["seconds"]) == 3
        assert row["engines"]["packed"]["training"] > 0
    assert (tmp_path / "bench.png").exists()


def test_what_is_not_there_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    only = ("--engines", "masked,packed,sparseprop,onnx")
    monkeypatch.setattr(library, "available", lambda: False)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench(monkeypatch, *SIZES, "--sparsity", "0.5", "--what", "step", *only, "--out", str(tmp_path)) == 0
    result = written(tmp_path)
    assert list(result["rows"][0]["engines"]) == ["dense", "masked"]
    assert result["machine"]["kernels"] is None
    said = capsys.readouterr().out
    for part in ("packed is skipped", "onnx is skipped: it needs onnx and onnxruntime", "selfish-rnn[bench]"):
        assert 0 <= said.find(part) < said.index("training step"), "said before anything is measured"
    assert [note.split()[0] for note in result["notes"] if "skipped" in note] == ["onnx", "sparseprop", "packed"]
    assert not (tmp_path / "bench.png").exists()


def test_a_rival_that_fails_or_computes_something_else_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(model: object) -> None:
        raise RuntimeError("no such instruction\nand more")

    monkeypatch.setitem(rivals.RIVALS, "float16", broken)
    monkeypatch.setitem(rivals.RIVALS, "csr", lambda model: (lambda word: (torch.zeros(30),), ()))
    words = ("--sparsity", "0.5", "--what", "inference", "--engines", "float16,csr", "--out", str(tmp_path))
    assert bench(monkeypatch, *SIZES, *words) == 0
    result = written(tmp_path)
    assert list(result["rows"][0]["engines"]) == ["dense", "csr"]
    failed, wrong = (note for note in result["notes"] if "cores" not in note)
    assert failed == "float16 is skipped: RuntimeError: no such instruction"
    assert wrong.startswith("next word of one text, lstm 20, sparsity 0.5: csr differs from dense by")


def test_a_precision_in_which_torch_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("selfish_rnn.bench.bench.computes_in", lambda dtype: False)
    words = ("--sparsity", "0.5", "--what", "step", "--engines", "bfloat16", "--out", str(tmp_path))
    assert bench(monkeypatch, *SIZES, *words) == 0
    result = written(tmp_path)
    assert list(result["rows"][0]["engines"]) == ["dense"]
    assert any(note.startswith("bfloat16 is skipped: torch ") for note in result["notes"])


def test_torch_is_tried_in_another_process(monkeypatch: pytest.MonkeyPatch):
    assert rivals.computes_in(torch.float32)
    monkeypatch.setattr(rivals, "_AUTOCAST_STEP", "import os; os.kill(os.getpid(), 4)  # {dtype}")
    rivals.computes_in.cache_clear()
    assert not rivals.computes_in(torch.float32)
    rivals.computes_in.cache_clear()


def test_an_interrupted_benchmark_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    measured = iter([{"dense": [1.0], "masked": [2.0]}])

    def interrupted(*_: object) -> dict[str, list[float]]:
        for seconds in measured:
            return seconds
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "interleaved", interrupted)
    words = ("--sparsity", "0.5,0.9", "--what", "step", "--engines", "masked", "--out", str(tmp_path))
    assert bench(monkeypatch, *SIZES, *words) == 130
    result = written(tmp_path)
    assert result["complete"] is False
    assert [row["engines"]["masked"]["ratio"] for row in result["rows"]] == [0.5]
    assert "Stopped; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--network", "gru"), "--network gru is for --what stream"),
        (("--sparsity", "0.5,1"), "--sparsity must be less than 1, got '1'"),
        (("--sparsity", "-0.1"), "--sparsity must be at least 0, got '-0.1'"),
        (("--sparsity", "nan"), "--sparsity must be less than 1, got 'nan'"),
        (("--sparsity", "half"), "--sparsity must be a number, got 'half'"),
        (("--hidden", "512, 0"), "--hidden must be at least 1, got '0'"),
        (("--hidden", ""), "--hidden must be an integer, got ''"),
        (("--hidden", "5.5"), "--hidden must be an integer, got '5.5'"),
        (("--what", "speed"), "--what must be step, inference, operators, memory, width or stream, got 'speed'"),
        (
            ("--what", "width", "--widths", "20"),
            "--widths 20 has 406,400 positions, too few for the 33,000,000 weights",
        ),
        (("--engines", "cuda"), "got 'cuda'"),
        (("--rounds", "0"), "--rounds must be at least 1, got '0'"),
        (("--batch", "many"), "--batch must be an integer, got 'many'"),
        (("--threads", "0"), "--threads must be at least 1, got '0'"),
        (("--limit", "-1"), "--limit must be greater than 0, got '-1'"),
        (("--limit", "inf"), "--limit must be finite, got 'inf'"),
        (("--optimizer", "lion"), "--optimizer must be snt-asgd, nt-asgd, sgd, momentum-sgd or adam, got 'lion'"),
        (("--network", "on-lstm", "--hidden", "33"), "10 does not divide 33"),
        (("--out", __file__), f"cannot write {Path(__file__) / 'bench.json'}: "),
    ],
)
def test_bad_options_are_one_clear_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert bench(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert message in said


def test_an_unknown_flag_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert bench(monkeypatch, "--speed", "3") == 2
    assert "no such option: --speed" in capsys.readouterr().err
