"""Named arrays and plain values as bytes: the one format of cost models, in files and between actors.

The bytes are a safetensors file, so that reading one runs no code. Its metadata holds, as JSON text, the plain values,
the format's version and a digest over all arrays and values. Bytes that were truncated, altered or put together from
two files are refused. The field ``model`` names the kind of model, ``header`` holds its plain values;
:mod:`policies.cost_models.registry` says what the arrays mean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

FORMAT_VERSION = 2

_FIELDS = "fleet_tune.manifest"
_HEADER_BYTES = 8


class NewerFormatError(ValueError):
    """The bytes are of a format that a later version wrote."""


class DamagedError(ValueError):
    """The bytes were altered: their digest differs."""


def encode(fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of these arrays and values. ``fields``: values that JSON can express, under names other than
    ``format`` and ``digest``."""
    contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    whole = {**fields, "format": FORMAT_VERSION}
    text = json.dumps({**whole, "digest": _digest(whole, contiguous)}, sort_keys=True)
    return bytes(save(contiguous, {_FIELDS: text}))


def decode(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the fields and arrays that :func:`encode` was given; the arrays are read-only. Version 1 of the format is
    read too. Raise ValueError for any other bytes: :class:`DamagedError` if the digest differs,
    :class:`NewerFormatError` if a later version wrote them."""
    try:
        arrays = load(content)
        length = int.from_bytes(content[:_HEADER_BYTES], "little")
        metadata = json.loads(content[_HEADER_BYTES : _HEADER_BYTES + length])
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"no whole safetensors file ({error})") from error
    try:
        fields = json.loads(metadata["__metadata__"][_FIELDS])
        version = fields["format"]
        newer = version > FORMAT_VERSION
        digest = None if newer else fields.pop("digest")
    except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"its manifest is missing or wrong ({error!r})") from error
    if newer:
        raise NewerFormatError(f"it has format {version} and this fleet-tune reads up to {FORMAT_VERSION}")
    if digest != _digest(fields, arrays):
        raise DamagedError("its digest differs: the file was altered")
    if version == 1:
        arrays = {_renamed(name): values for name, values in arrays.items()}
    del fields["format"]
    return fields, arrays


def _renamed(name: str) -> str:
    """Return today's name of an array of version 1, which numbered the parts of a model: each booster's trees were one
    part, a network was one part."""
    number, _, own = name.partition("/")
    return f"trees.{number}" if own == "bytes" else own


def _digest(fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of all values and of every array with its name, type and shape."""
    state = hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        values = arrays[name]
        state.update(f"\n{name} {values.dtype.str} {values.shape}\n".encode())
        state.update(np.ascontiguousarray(values).tobytes())
    return state.hexdigest()
