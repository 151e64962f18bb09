"""An option is a field of the model, and that is a flag of the command."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from selfish_rnn.bench import streams
from selfish_rnn.bench.engines import ENGINES, KINDS, measured
from selfish_rnn.bench.options import NETWORKS, BenchOptions, Kind, Network, Optimizer, flag, read
from selfish_rnn.bench.products import PRODUCTS_OF
from selfish_rnn.bench.rivals import RIVALS
from selfish_rnn.bench.workloads import OPTIMIZERS
from selfish_rnn.errors import UserError

FLAGS = [
    "--network", "--hidden", "--sparsity", "--batch", "--window", "--vocabulary", "--what", "--widths", "--engines",
    "--rounds", "--limit", "--threads", "--optimizer", "--keep-memory", "--out",
]  # fmt: skip

CALL = """
import sys
from selfish_rnn import cli
sys.argv = ["selfish-rnn", "bench", "--help"]
try:
    cli.main()
finally:
    print("MEASURES", any(name in sys.modules for name in ("selfish_rnn.bench.bench", "selfish_rnn.bench.workloads")))
"""


def test_every_option_is_a_flag_and_every_flag_an_option():
    done = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, check=True)
    shown = re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE)
    assert shown == [*(flag(entry.name) for entry in fields(BenchOptions)), "--import", "--help"]
    assert shown == [*FLAGS, "--import", "--help"]
    for entry in fields(BenchOptions):
        assert entry.metadata["help"].split()[0] in done.stdout
    assert "MEASURES False" in done.stdout, "help needs nothing that measures"


def test_the_page_names_every_flag():
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    assert [name for name in FLAGS if f"`{name}`" not in page] == []


def test_lists_are_words_between_commas():
    options = read({"hidden": "512, 1500,512", "sparsity": "0.9,0.5", "what": "memory,step", "engines": "csr,packed"})
    assert options.hidden == (512, 1500)
    assert options.sparsity == (0.9, 0.5)
    assert options.what == ("step", "memory")
    assert options.engines == ("dense", "csr", "packed")


@pytest.mark.parametrize("network", NETWORKS)
def test_without_a_size_it_is_the_papers(network: str):
    assert read({"network": network}).hidden == (NETWORKS[network],)
    assert read({"network": network, "hidden": "20"}).hidden == (20,)


def test_what_was_saved_reads_back():
    options = read({"hidden": "20", "limit": "1.5", "keep_memory": True, "out": "somewhere"})
    assert read(options.to_json()) == options


def test_an_unknown_option_is_refused():
    with pytest.raises(UserError, match="no such option: --speed"):
        read({"speed": 1})


def test_the_tables_have_every_name():
    assert {*NETWORKS, "gru"} == set(get_args(Network))  # a GRU is measured as a stream only
    assert list(OPTIMIZERS) == list(get_args(Optimizer))
    assert list(KINDS) == list(get_args(Kind))
    for kind in KINDS:
        for network in NETWORKS:
            assert ("stream" if kind == "stream" else "packed") in measured(kind, network)
            assert ("dense" in measured(kind, network)) == (kind != "width")
    assert {name for name, item in ENGINES.items() if "inference" in item.kinds} == set(RIVALS)
    assert {name for name, item in ENGINES.items() if "stream" in item.kinds} == set(streams.ENGINES)
    assert {name for name, item in ENGINES.items() if "operators" in item.kinds} == set(PRODUCTS_OF)
    assert all(set(item.baseline_of) <= set(item.kinds) for item in ENGINES.values())


def test_the_page_names_every_engine_and_kind():
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    assert [name for name in (*ENGINES, *KINDS) if f"`{name}`" not in page] == []
