"""Checkpoints survive kills, damage and full disks, and give back exactly what was saved."""

from __future__ import annotations

import json
import math
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import state_of, store_of, visible
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from selfish_rnn.errors import UserError
from selfish_rnn.runs.checkpoints import FORMAT, CheckpointStore, DamagedError, seal, unseal

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def identical(left: Any, right: Any) -> bool:
    """Equal in value, type and, for numbers, every bit; a tuple equals the list it comes back as."""
    if isinstance(left, Tensor):
        plain = [
            tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right) if tensor.numel()
        ]
        same_kind = left.dtype == right.dtype and left.shape == right.shape
        return same_kind and (not plain or torch.equal(*plain))
    if isinstance(left, float):
        same_nan = math.isnan(left) and math.isnan(right)
        return isinstance(right, float) and (same_nan or struct.pack("d", left) == struct.pack("d", right))
    if isinstance(left, (list, tuple)):
        return isinstance(right, list) and len(left) == len(right) and all(map(identical, left, right))
    if isinstance(left, dict):
        return [(type(key), key) for key in left] == [(type(key), key) for key in right] and all(
            identical(left[key], right[key]) for key in left
        )
    return type(left) is type(right) and left == right


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    tensor = (torch.randn(shape, generator=generator) * 9).to(draw(st.sampled_from(DTYPES)))
    return tensor.transpose(0, -1) if shape and draw(st.booleans()) else tensor


keys = st.one_of(st.text(max_size=4), st.integers(-3, 9), st.sampled_from(["$tensor", "$pairs", "a/b", "__metadata__"]))
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), tensors())
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(keys, nested, max_size=4), st.integers(0, 10**12))
def test_any_nested_state_comes_back_exactly(state: dict[Any, Any], step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        CheckpointStore(folder).save(state, step)
        loaded = CheckpointStore(folder).load()
    assert identical(state, loaded.state)
    assert (loaded.step, loaded.damaged) == (step, [])


def test_optimizer_state_and_shared_memory(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.randn(4, 6))
    optimizer = torch.optim.Adam([parameter])
    parameter.square().sum().backward()
    optimizer.step()
    base = torch.arange(12.0)
    state = {
        "optimizer": optimizer.state_dict(),
        "tied": [base, base, base[2:5], base.view(3, 4).t()],
        "weight": parameter,
        "expanded": torch.ones(1).expand(5),
    }
    CheckpointStore(tmp_path).save(state, 1)
    loaded = CheckpointStore(tmp_path).load().state
    assert identical(state, loaded)
    loaded["tied"][0].zero_()
    assert identical(base, loaded["tied"][1]), "tensors come back with memory of their own"
    torch.optim.Adam([parameter]).load_state_dict(loaded["optimizer"])


@pytest.mark.parametrize(
    "state", [{"a": {1, 2}}, {"a": [object()]}, {1.5: 0}, {True: 0}, {"a": torch.eye(2).to_sparse()}]
)
def test_what_cannot_be_saved_is_refused_and_the_store_stays(tmp_path: Path, state: Any) -> None:
    store = store_of(tmp_path, 1)
    with pytest.raises(TypeError, match=r"cannot save|strided"):
        store.save(state, 2)
    assert store.load().step == 1
    assert visible(tmp_path) == ["step-1.json", "step-1.safetensors"]
    with pytest.raises(ValueError, match="negative"):
        store.save({}, -1)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1, 2, 10)
    assert visible(tmp_path) == ["step-10.json", "step-10.safetensors", "step-2.json", "step-2.safetensors"]
    assert store.steps() == [2, 10]
    assert identical(store.load().state, state_of(10))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    for epoch in (7, 8):
        store.save({"epoch": epoch, "weights": torch.ones(epoch)}, 1)
        assert identical(CheckpointStore(tmp_path).load().state, {"epoch": epoch, "weights": torch.ones(epoch)})
        assert len(visible(tmp_path)) == 2


def damage(path: Path, how: str, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    position = chance.randrange(len(data))
    if how == "bit":
        data[position] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del data[position:]
    elif how == "grown":
        data += b"\n"
    elif how == "garbage":
        data = bytearray(b"not a checkpoint")
    path.unlink() if how == "missing" else path.write_bytes(data)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("how", ["bit", "cut", "grown", "garbage", "missing"])
def test_damage_is_noticed_and_the_previous_used(tmp_path: Path, suffix: str, how: str) -> None:
    store_of(tmp_path, 1, 2)
    path = tmp_path / f"step-2.{suffix}"
    original = path.read_bytes()
    chance = random.Random(f"{suffix} {how}")
    for _ in range(60 if how in ("bit", "cut") else 1):
        damage(path, how, chance)
        loaded = CheckpointStore(tmp_path).load()
        assert loaded.step == 1
        assert identical(loaded.state, state_of(1))
        # Without its JSON a checkpoint was never finished: nothing to report.
        uncommitted = (suffix, how) == ("json", "missing")
        assert [name.split()[0] for name in loaded.damaged] == ([] if uncommitted else ["step-2.json"])
        path.write_bytes(original)
    assert CheckpointStore(tmp_path).load().step == 2


def test_every_byte_of_the_json_is_protected(tmp_path: Path) -> None:
    data = seal({"step": 3, "state": {"a": 1}})
    assert unseal(data) == json.loads(data)["checkpoint"]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedError):
                unseal(bytes(flipped))
        with pytest.raises(DamagedError):
            unseal(data[:position])


def test_after_damage_the_good_one_stays_the_previous(tmp_path: Path) -> None:
    store_of(tmp_path, 1, 20)
    damage(tmp_path / "step-20.json", "garbage", random.Random(0))
    store = CheckpointStore(tmp_path)
    assert store.load().step == 1
    store.save(state_of(15), 15)
    assert store.steps() == [1, 15]
    assert CheckpointStore(tmp_path).load().damaged == []


def test_nothing_to_load_is_said_in_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match=r"no checkpoint in .*selfish-rnn train") as caught:
            CheckpointStore(folder).load()
        assert str(folder) in str(caught.value)
    store = store_of(tmp_path, 1, 2)
    for step in (1, 2):
        damage(tmp_path / f"step-{step}.safetensors", "bit", random.Random(1))
    with pytest.raises(UserError, match=r"is damaged: .*step-2\.json.*step-1\.json") as caught:
        store.load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("format_number", "package"), [(FORMAT - 1, "0.0.9"), (FORMAT + 1, "9.9")])
def test_another_format_is_not_called_damaged(tmp_path: Path, format_number: int, package: str) -> None:
    store = store_of(tmp_path, 1)
    path = tmp_path / "step-1.json"
    path.write_bytes(seal({**unseal(path.read_bytes()), "format": format_number, "package": package}))
    with pytest.raises(UserError) as caught:
        store.load()
    assert f"written by selfish-rnn {package} in format {format_number}, this version reads format {FORMAT}" in str(
        caught.value
    )
