"""The setting `precision`, from the command line's words to the products of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from selfish_rnn.engine import available, library
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.errors import UserError
from selfish_rnn.training.build import build_network
from selfish_rnn.training.engine_choice import choose_engine
from tiny_runs import TINY_MODELS, tiny_experiment, trained

pytestmark = pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")


@pytest.fixture
def _emulation() -> Iterator[None]:
    before = library.target()
    library.use_target("portable")
    yield
    library.use_target(before)


def test_bfloat16_chooses_the_packed_engine(texts: Path) -> None:
    assert choose_engine(tiny_experiment(texts, engine="auto", precision="bfloat16"), 20).engine == "packed"


@pytest.mark.parametrize("changes", [{"engine": "masked"}, {"sparsity": 0.0}])
def test_bfloat16_needs_the_packed_engine(texts: Path, changes: dict[str, object]) -> None:
    with pytest.raises(UserError, match="use precision=float32"):
        choose_engine(tiny_experiment(texts, precision="bfloat16", **changes), 20)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_packed_weight_has_the_precision_of_the_experiment(texts: Path, precision: str) -> None:
    model, _ = build_network(tiny_experiment(texts, engine="packed", precision=precision), 20, 1)
    assert {weight.precision for weight in packed_weights(model).values()} == {precision}


@pytest.mark.usefixtures("_emulation")
@pytest.mark.parametrize("model", ["stacked-lstm", "rhn", "on-lstm", "awd-lstm-mos"])
def test_training_in_bfloat16_stays_near_that_in_float32(texts: Path, model: str) -> None:
    settings = {"model": {"name": model, **TINY_MODELS[model]}, "epochs": 1, "engine": "packed"}
    losses = {
        precision: torch.tensor([step.loss for step in trained(texts, precision=precision, **settings).steps])
        for precision in ("float32", "bfloat16")
    }
    assert losses["bfloat16"].isfinite().all()
    assert not torch.equal(losses["bfloat16"], losses["float32"])
    assert (losses["bfloat16"] - losses["float32"]).abs().max() < 0.05
