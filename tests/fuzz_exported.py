"""Damages exported files in many ways: each is to be refused with one clear error, or to give the same result.

python tests/fuzz_exported.py model.safetensors 10000
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.runs.export import load_model


def mutated(content: bytes, source: random.Random) -> bytes:
    """Flipped bits, changed, removed, doubled and zeroed stretches, and files that end early."""
    damaged, at = bytearray(content), source.randrange(len(content))
    length = min(source.choice([1, 1, 2, 8, 64, 1000]), len(content) - at)
    match source.randrange(6):
        case 0:
            damaged[at] ^= 1 << source.randrange(8)
        case 1:
            damaged[at : at + length] = source.randbytes(length)
        case 2:
            del damaged[at : at + length]
        case 3:
            damaged[at:at] = damaged[at : at + length]
        case 4:
            damaged[at : at + length] = bytes(length)
        case _:
            del damaged[at:]
    return bytes(damaged)


def scores(path: Path) -> Tensor:
    model = load_model(path)
    step = model.next_word()
    if step is not None:
        return step.run([0, 1, 2])
    with torch.no_grad():  # damaged weights may be too large for a comparison of the step with the modules
        return model(torch.tensor([[0], [1], [2]]))[0][:, 0]


def fuzz(path: Path, count: int, seed: int = 0) -> tuple[int, int]:
    """How many of the damaged files were refused, and how many gave the same result; anything else is an error."""
    source, content, expected = random.Random(seed), path.read_bytes(), scores(path)
    refused = same = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "damaged.safetensors"
        for _ in range(count):
            file.write_bytes(mutated(content, source))
            try:
                found = scores(file)
            except UserError:
                refused += 1
                continue
            if not torch.equal(found, expected):
                raise AssertionError("a damaged file gave another result")
            same += 1
    return refused, same


def fuzz_content(path: Path, count: int, seed: int = 0) -> int:
    """The same past the checksum: tensors are changed and the file is written anew. How many were refused.

    What is not refused is another model, and has to run.
    """
    source = random.Random(seed)
    tensors, metadata = load_tensors(path)
    changes: list[Callable[[Tensor], Tensor]] = [
        lambda tensor: tensor[: source.randrange(len(tensor) + 1)],
        lambda tensor: torch.cat([tensor, tensor[:3]]),
        lambda tensor: _with_bytes(tensor, source),
        lambda tensor: tensor.to(source.choice([torch.int8, torch.uint8, torch.float32, torch.int64])),
        lambda tensor: tensor.unsqueeze(0),
        lambda tensor: tensor[torch.randperm(len(tensor))],
    ]
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "changed.safetensors"
        for _ in range(count):
            changed, name = dict(tensors), source.choice(sorted(tensors))
            if source.randrange(10) == 0:
                del changed[name]
            else:
                changed[name] = source.choice(changes)(changed[name])
            save_tensors(file, changed, metadata)
            try:
                scores(file)
            except UserError:
                refused += 1
    return refused


def _with_bytes(tensor: Tensor, source: random.Random) -> Tensor:
    if tensor.numel() == 0:
        return tensor
    changed = tensor.clone().contiguous()
    raw = changed.view(-1).view(torch.uint8)
    for _ in range(source.choice([1, 4, 100])):
        raw[source.randrange(len(raw))] = source.randrange(256)
    return changed


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, wanted = Path(sys.argv[1]), int(sys.argv[2])
    refused, same = fuzz(given, wanted)
    print(f"damaged files: {refused} of {wanted} refused, {same} with the same result")
    print(f"changed contents: {fuzz_content(given, wanted)} of {wanted} refused, the others ran")
