"""accelerate needs no callback: a sparsifier is one more thing that is saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from framework_cases import ENGINES, Classifier, examples, same
from torch import nn
from torch.utils.data import DataLoader

from selfish_rnn import Sparsifier, pack

pytest.importorskip("accelerate", reason="needs the extra transformers")
from accelerate import Accelerator

pytestmark = pytest.mark.slow


def train(engine: str, method: str, folder: Path, load: bool) -> tuple[nn.Module, Sparsifier]:
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.7, method=method, rewirings=4)
    if engine == "packed":
        pack(model)
    made: Any = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), DataLoader(examples(), 8))
    model, optimizer, loader = made
    accelerator.register_for_checkpointing(sparsifier)
    if load:
        accelerator.load_state(str(folder))
    for epoch in range(2 if load else 0, 4):
        for x, labels in loader:
            with accelerator.accumulate(model), sparsifier.dense_gradients():
                accelerator.backward(nn.functional.cross_entropy(model(x), labels))
                optimizer.step()
                optimizer.zero_grad()
        sparsifier.rewire()
        if epoch == 1 and not load:
            accelerator.save_state(str(folder))
    return accelerator.unwrap_model(model), sparsifier


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["selfish", "rigl"])
def test_a_loaded_state_goes_on_bit_identically(engine: str, method: str, tmp_path: Path) -> None:
    model, sparsifier = train(engine, method, tmp_path / "state", load=False)
    loaded, again = train(engine, method, tmp_path / "state", load=True)
    assert same(model, loaded)
    assert sparsifier.rewirings_done == again.rewirings_done == 4
    assert sparsifier.active_weights == again.active_weights == round(0.3 * 792)
