"""Nested state as JSON with placeholders for tensors, sealed with a checksum; nothing in it can execute."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Marks an object that stands for something JSON lacks; a mapping with such a key itself is written as pairs.
_TENSOR, _FLOAT, _PAIRS = "$tensor", "$float", "$pairs"


class DamagedError(Exception):
    """Data is not what was written."""


def encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` as JSON can hold it and put its tensors into ``tensors``, named by their path."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, Tensor):
        name = path.removeprefix("/")
        # Different paths can spell the same name: the key "a/b", or b inside a.
        while name in tensors or name in ("", "__metadata__"):
            name += "~"
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise TypeError(f"cannot save key {key!r} of {path or '/'}: keys are strings or integers")
        pairs = [(key, encode(item, f"{path}/{key}", tensors)) for key, item in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {_PAIRS: pairs}
    raise TypeError(
        f"cannot save {path or '/'}: {type(value).__name__} is not a tensor, number, string, boolean, None, "
        "list, tuple or mapping"
    )


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo :func:`encode`; what was a tuple is a list."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _FLOAT in value:
        return float(value[_FLOAT])
    pairs = value[_PAIRS] if _PAIRS in value else value.items()
    return {key: decode(item, tensors) for key, item in pairs}


# The checksum covers the very bytes of the body, and the bytes around it are fixed: no flipped bit goes unnoticed.
_BEFORE, _BETWEEN, _AFTER = b'{"sha256": "', b'", "checkpoint": ', b"}\n"
_BODY = len(_BEFORE) + 64 + len(_BETWEEN)


def seal(body: dict[str, Any]) -> bytes:
    """Return ``body`` as JSON beside the SHA-256 of its bytes."""
    content = json.dumps(body, allow_nan=False).encode()
    return _BEFORE + hashlib.sha256(content).hexdigest().encode() + _BETWEEN + content + _AFTER


def unseal(data: bytes) -> dict[str, Any]:
    """Return the body of what :func:`seal` made; any other bytes are a :class:`DamagedError`."""
    content = data[_BODY : -len(_AFTER)]
    if data != _BEFORE + hashlib.sha256(content).hexdigest().encode() + _BETWEEN + content + _AFTER:
        raise DamagedError("its checksum does not match")
    body: dict[str, Any] = json.loads(content)
    return body
