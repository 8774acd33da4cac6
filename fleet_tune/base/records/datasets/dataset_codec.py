"""Values of a dataset file: numpy columns, and the symbolic description of a sketch, as plain msgpack values.

The description is written with the names of its types and fields. A field that is added to
:mod:`fleet_tune.base.sketch` later is written without a change here. A reader ignores fields that it does not know, and
a field that an old file lacks gets its default. Nothing here reads pickle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base import domain, sketch

_TYPE = "type"
_STATEMENT = "statement"
#: Types that a file may name.
_TYPES: dict[str, type] = {
    kind.__name__: kind
    for module in (sketch, domain)
    for kind in vars(module).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
#: Fields with another name in older files: the old name, and the current one.
_RENAMED = {("Fingerprint", "reference_secs"): "probe_secs"}
_INTEGERS = ("<i1", "<i2", "<i4", "<i8")
_DTYPES = frozenset({*_INTEGERS, "<f4", "<f8"})


class _Statements:
    """A table of distinct statements."""

    def __init__(self) -> None:
        self.listed: dict[sketch.Statement, int] = {}
        self._numbers: dict[int, int] = {}  # by identity: comparing a statement takes long

    def number(self, statement: sketch.Statement) -> int:
        number = self._numbers.get(id(statement))
        if number is None:
            number = self._numbers[id(statement)] = self.listed.setdefault(statement, len(self.listed))
        return number


def encode_sketches(sketches: Sequence[sketch.Sketch]) -> dict[str, Any]:
    """Return sketches as plain values. A statement that several variants have is written once."""
    table = _Statements()
    encoded = [encode_value(each, table) for each in sketches]
    return {"statements": [encode_value(statement) for statement in table.listed], "sketches": encoded}


def decode_sketches(value: Any) -> tuple[sketch.Sketch, ...]:
    """Return the sketches that :func:`encode_sketches` wrote. Equal statements are one object. Raise as
    :func:`decode_value` does."""
    statements = decode_value(value["statements"])
    return tuple(decode_value(each, statements) for each in value["sketches"])


def encode_value(value: Any, table: _Statements | None = None) -> Any:
    """Return a dataclass of :mod:`fleet_tune.base.sketch` or :mod:`fleet_tune.base.domain`, with all that is in it, as
    plain values.

    ``table``: collects the statements, so that the result has only their numbers. Raise TypeError for anything that a
    file cannot hold.
    """
    if table is not None and isinstance(value, sketch.Statement):
        return {_STATEMENT: table.number(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if _TYPES.get(name) is not type(value):
            raise TypeError(f"a dataset cannot hold a {type(value)}")
        fields = {field.name: encode_value(getattr(value, field.name), table) for field in dataclasses.fields(value)}
        return {_TYPE: name, **fields}
    if isinstance(value, tuple | list):
        return [encode_value(item, table) for item in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    raise TypeError(f"a dataset cannot hold a {type(value)}")


def decode_value(value: Any, statements: Sequence[sketch.Statement] = ()) -> Any:
    """Return the value that :func:`encode_value` wrote; lists become tuples. ``statements``: its table. Raise
    ValueError for a type that this version does not know, TypeError if a field without a default is missing."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(decode_value(item, statements) for item in value)
    if not isinstance(value, Mapping):
        return value
    if _STATEMENT in value:
        return statements[value[_STATEMENT]]
    kind = _TYPES.get(value[_TYPE])
    if kind is None:
        raise ValueError(f"unknown type {value[_TYPE]!r}")
    fields = {field.name for field in dataclasses.fields(kind)}
    named = {_RENAMED.get((kind.__name__, name), name): item for name, item in value.items()}
    return kind(**{name: decode_value(item, statements) for name, item in named.items() if name in fields})


def encode_array(array: NDArray[Any]) -> dict[str, Any]:
    """Return a column or matrix as plain values. Integers have the narrowest type that holds them. Columns follow each
    other, which compresses better."""
    if np.issubdtype(array.dtype, np.integer):
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        narrowest = next(d for d in _INTEGERS if np.iinfo(d).min <= low and high <= np.iinfo(d).max)
        array = array.astype(narrowest)
    name = array.dtype.newbyteorder("<").str.replace("|", "<")
    if name not in _DTYPES:
        raise TypeError(f"a dataset cannot hold an array of {array.dtype}")
    return {"dtype": name, "shape": list(array.shape), "data": array.astype(name).tobytes(order="F")}


def decode_array(value: Mapping[str, Any]) -> NDArray[Any]:
    """Return the array that :func:`encode_array` wrote: integers as int64, floats in their stored width. Raise
    ValueError if the values do not fill the shape."""
    if value["dtype"] not in _DTYPES:
        raise ValueError(f"unknown array type {value['dtype']!r}")
    shape = tuple(int(extent) for extent in value["shape"])
    array = np.frombuffer(value["data"], dtype=value["dtype"]).reshape(shape, order="F")
    wide = np.int64 if array.dtype.kind == "i" else array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, dtype=wide)
