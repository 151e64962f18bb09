"""Files carry their own checksum and are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from selfish_rnn import files
from selfish_rnn.errors import UserError
from selfish_rnn.files import ForeignFileError, load_tensors, save_tensors


def test_tensors_of_the_best_model(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    weights = {
        "a.weight": torch.randn(3, 4),
        "mask": torch.eye(3).bool(),
        "empty": torch.empty(0, 2),
        "one": torch.ones(()),
    }
    weights["tied"] = weights["a.weight"].t()
    described = {"epoch": "3", "corpus": "ptb", "vocabulary": "a\nb", "sha256": "mine"}
    save_tensors(path, weights, described)
    loaded = load_tensors(path)[0]
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    assert all(loaded[name].dtype == tensor.dtype for name, tensor in weights.items())
    assert load_tensors(path)[1] == described
    original = path.read_bytes()
    save_tensors(path, weights, described)
    assert path.read_bytes() == original, "equal content gives equal bytes"
    for position, byte in enumerate(original):
        with path.open("r+b") as file:  # in place: a file that is written anew may wait for the disk
            file.seek(max(position - 1, 0))
            file.write(original[max(position - 1, 0) : position] + bytes([byte ^ 1]))
        with pytest.raises(UserError, match=str(path)):
            load_tensors(path)
    path.write_bytes(original[:-1])
    with pytest.raises(UserError, match="damaged"):
        load_tensors(path)
    path.unlink()
    with pytest.raises(UserError, match="does not exist"):
        load_tensors(path)


def test_another_programs_file_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(ForeignFileError, match=str(path)):
        load_tensors(path)
    files.save_file({"a": torch.ones(3)}, path)
    with pytest.raises(ForeignFileError, match=str(path)):
        load_tensors(path)
    save_tensors(path, {"a": torch.ones(3)})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="checksum does not match") as caught:
        load_tensors(path)
    assert not isinstance(caught.value, ForeignFileError)


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_other_failures_to_write_name_file_and_reason(tmp_path: Path, number: int) -> None:
    path = tmp_path / "best.safetensors"
    with pytest.raises(UserError, match=str(path)) as caught, files.replacing(path):
        raise OSError(number, os.strerror(number))
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []
