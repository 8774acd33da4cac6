"""Saved cost models: one container for all of them, without pickle.

A file is ``FTMODEL1``, a 16-byte BLAKE2b digest of the rest, and a msgpack map with the model's kind, its header of
plain values, and its parts (bytes, such as trees or arrays). A file that was cut off or changed is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

_MAGIC = b"FTMODEL1"
_DIGEST_BYTES = 16
_ARRAY_TYPES = frozenset({"float32", "float64", "int32", "int64"})


@dataclass(frozen=True)
class Saved:
    """What a file holds. ``kind`` names the class, ``header`` has plain values, ``parts`` opaque bytes."""

    kind: str
    header: Mapping[str, Any]
    parts: tuple[bytes, ...]


def pack(saved: Saved) -> bytes:
    """The file's bytes."""
    body: bytes = msgpack.packb({"kind": saved.kind, "header": dict(saved.header), "parts": list(saved.parts)})
    return _MAGIC + _digest(body) + body


def unpack(data: bytes, kind: str | None = None) -> Saved:
    """What :func:`pack` wrote; ValueError for other bytes, damaged ones, or a model of another kind than ``kind``."""
    start = len(_MAGIC) + _DIGEST_BYTES
    if not data.startswith(_MAGIC):
        raise ValueError("these bytes are not a cost model")
    body = data[start:]
    if data[len(_MAGIC) : start] != _digest(body):
        raise ValueError("the cost model is cut off or damaged: its checksum differs")
    try:
        content = msgpack.unpackb(body)
        saved = Saved(content["kind"], content["header"], tuple(content["parts"]))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError("these bytes are not laid out as a cost model") from error
    if kind is not None and saved.kind != kind:
        raise ValueError(f"these bytes are not a cost model of the kind '{kind}' but of '{saved.kind}'")
    return saved


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def pack_array(values: NDArray[Any]) -> bytes:
    """An array as bytes, with its type and shape; ValueError for a type other than 32- and 64-bit numbers."""
    if values.dtype.name not in _ARRAY_TYPES:
        raise ValueError(f"arrays of {values.dtype.name} are not saved")
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    packed: bytes = msgpack.packb([values.dtype.name, list(values.shape), little.tobytes()])
    return packed


def unpack_array(data: bytes) -> NDArray[Any]:
    """The array that :func:`pack_array` wrote; ValueError for other bytes."""
    try:
        name, shape, content = msgpack.unpackb(data)
        if name not in _ARRAY_TYPES:
            raise ValueError(f"arrays of {name} are not read")
        stored = np.frombuffer(content, dtype=np.dtype(name).newbyteorder("<"))
        return stored.reshape(shape).astype(np.dtype(name))
    except (TypeError, ValueError) as error:
        raise ValueError("these bytes are not an array of a cost model") from error
