"""Bytes of a saved cost model: plain values and arrays by name, in the format of
:mod:`fleet_tune.base.array_codec`.

A model that is made of others holds their arrays beside its own, under a prefix (:func:`with_inner`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base import array_codec

_INNER = "inner"


@dataclass(frozen=True, eq=False)
class SavedState:
    """A saved cost model in plain values."""

    kind: str
    """Name of the class."""
    header: Mapping[str, Any]
    """Plain values."""
    arrays: Mapping[str, NDArray[Any]]
    """Arrays by name. Those of an unpacked model are read-only."""


def pack(saved: SavedState) -> bytes:
    """The bytes of a saved model."""
    return array_codec.encode({"model": saved.kind, "header": dict(saved.header)}, saved.arrays)


def unpack(data: bytes, kind: str | None = None) -> SavedState:
    """Return the saved model in bytes of :func:`pack` or of a model file. Raise ValueError for other bytes, for damaged
    ones, and for a model of another kind than ``kind``."""
    try:
        fields, arrays = array_codec.decode(data)
        saved = SavedState(fields["model"], fields["header"], arrays)
    except array_codec.DamagedError as error:
        raise ValueError("the cost model is cut off or damaged: its checksum differs") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"these bytes are not a cost model: {error}") from error
    if kind is not None and saved.kind != kind:
        raise ValueError(f"these bytes are not a cost model of the kind '{kind}' but of '{saved.kind}'")
    return saved


def with_inner(saved: SavedState, models: Mapping[str, bytes]) -> SavedState:
    """``saved`` with other saved models in it, by name."""
    parts = {name: unpack(data) for name, data in models.items()}
    inner = {name: {"kind": part.kind, "header": dict(part.header)} for name, part in parts.items()}
    arrays = {f"{name}/{array}": values for name, part in parts.items() for array, values in part.arrays.items()}
    return SavedState(saved.kind, {**saved.header, _INNER: inner}, {**saved.arrays, **arrays})


def inner(saved: SavedState) -> dict[str, bytes]:
    """The saved models that :func:`with_inner` put in, by name."""
    return {
        name: pack(SavedState(part["kind"], part["header"], prefixed(saved.arrays, f"{name}/")))
        for name, part in saved.header[_INNER].items()
    }


def prefixed(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays whose name begins with the prefix, by the rest of their names, in order."""
    return {name.removeprefix(prefix): arrays[name] for name in sorted(arrays) if name.startswith(prefix)}


def opaque(content: bytes) -> NDArray[np.uint8]:
    """Bytes of another library as an array."""
    return np.frombuffer(content, dtype=np.uint8)
