"""Arrays in a file of the safetensors format, of every type that kernels compute in, bfloat16 included.

Layout: eight bytes with the header's length (little endian), the header (JSON: type, shape and position of each array),
the arrays' bytes. Nothing is copied: arrays are written from their own memory, and arrays that are read are views of
the mapped file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fleet_tune.base.records.files.atomic_file import write_atomically

Array = npt.NDArray[Any]

_TYPES: Mapping[str, np.dtype[Any]] = {
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
# Alignment of the first array. Kernels need it, and sharing memory with TVM needs it.
_ALIGNMENT = 64
_PIECE = 1 << 24


def can_hold(array: Array) -> bool:
    """Return true if kernels compute in the type of ``array``."""
    return array.dtype in _NAMES


def contents(arrays: Mapping[str, Array]) -> list[bytes | memoryview]:
    """Return the contents of a file with ``arrays``, which are C-contiguous, as parts to write one after the other.

    Raises ValueError for a type that no kernel has.
    """
    header: dict[str, Any] = {}
    end = 0
    for key, array in arrays.items():
        if not can_hold(array):
            raise ValueError(f"tensors of the type {array.dtype} cannot be stored")
        begin, end = end, end + array.nbytes
        header[key] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    data = (array.reshape(-1).view(np.uint8).data for array in arrays.values())  # memoryviews know no bfloat16
    return [len(text).to_bytes(8, "little") + text, *data]


def write(path: Path, arrays: Sequence[Array]) -> None:
    """Write arrays under their numbers, for another process to read. Raises OSError."""
    named = {str(at): np.asarray(array, order="C") for at, array in enumerate(arrays)}
    write_atomically(path, contents(named), durable=False)


def read(path: Path, mode: Literal["r", "r+", "c"] = "r") -> dict[str, Array]:
    """Return the arrays of a file, mapped from it as :class:`numpy.memmap` does it.

    ``mode``: read-only, writable, or copy-on-write. TVM does not share read-only memory. Raises OSError, and ValueError
    if it is not such a file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size - 8:
            raise ValueError(f"{path} holds no tensors")
        header = json.loads(file.read(length))
    stored = np.memmap(path, np.uint8, mode=mode)[8 + length :] if header else np.empty(0, np.uint8)
    arrays = {}
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[key] = np.asarray(stored[begin:end]).view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def digest(parts: Iterable[bytes | memoryview]) -> str:
    """Return the content hash of a file made of ``parts``."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def file_digest(path: Path) -> str:
    """Return :func:`digest` of a file. Raises OSError."""
    with path.open("rb") as file:
        return digest(iter(lambda: file.read(_PIECE), b""))
