"""Inputs that the user gives in an ``.npz`` file (``--inputs``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from devices.error_text import brief
from devices.networks.network import Array, Network, extents_of
from devices.timing.arguments import is_float, numpy_dtype
from fleet_tune.base.errors import NetworkError
from fleet_tune.base.shapes.dimensions import Dimension, in_words
from fleet_tune.base.shapes.extent_sums import sums_of

_ARCHIVE, _ARRAY = b"PK", b"\x93NUMPY"


def read_inputs(file: Path, network: Network) -> tuple[Array, ...]:
    """Return the arrays of ``file`` for the inputs of ``network``: by their names, or in order if :func:`numpy.savez`
    named them (``arr_0``, ``arr_1``, ...).

    Shapes must be those of the inputs, with one extent in range for each dynamic dimension. Types may differ if only
    digits are lost: integers and booleans become integers of another type if all their values fit, and floats become
    floats of another precision if none becomes infinite.

    Raises :class:`NetworkError`, which names the inputs.
    """
    shapes = network.input_shapes or tuple(array.shape for array in network.example_inputs)
    wanted = {
        name: (shape, array.dtype.name)
        for name, shape, array in zip(network.input_names, shapes, network.example_inputs, strict=True)
    }
    told = ", ".join(f"{name} {dtype}{_said(shape)}" for name, (shape, dtype) in wanted.items())
    given = _read(file, told)
    if sorted(given) == sorted(f"arr_{at}" for at in range(len(wanted))):
        given = {name: given[f"arr_{at}"] for at, name in enumerate(wanted)}
    missing, unknown = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or unknown:
        problem = [f"has no {', '.join(missing)}"] if missing else []
        problem += [f"has {', '.join(unknown)}, which the network does not have"] if unknown else []
        raise NetworkError(f"{file} {' and '.join(problem)}", f"save {told} with numpy.savez")
    arrays = tuple(_fitted(given[name], shape, dtype, file, name) for name, (shape, dtype) in wanted.items())
    extents = extents_of(shapes, arrays)
    dimensions = network.shapes.dynamic if network.shapes is not None else ()
    for dynamic in dimensions:
        _check_extents(extents[dynamic.name], dynamic, file)
    known = {each.name: min(extents[each.name]) for each in dimensions}
    for at, axis, total in sums_of(shapes):
        if arrays[at].shape[axis] != total.at(known):
            raise NetworkError(
                f"{file}: {network.input_names[at]} has {arrays[at].shape[axis]} for {total}, where {in_words(known)}",
                f"save an array of {total.at(known)} there",
            )
    return arrays


def _check_extents(extents: set[int], dynamic: Dimension, file: Path) -> None:
    outside = sorted(extent for extent in extents if extent not in dynamic)
    if outside or len(extents) > 1:
        problem = f"has {outside[0]} for {dynamic.name}" if outside else f"has several extents for {dynamic.name}"
        raise NetworkError(f"{file} {problem}", f"save arrays of one extent within {dynamic}, or give other bounds")


def _said(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _read(file: Path, told: str) -> dict[str, Array]:
    next_step = f"save {told} with numpy.savez"
    try:
        with file.open("rb") as opened:
            head = opened.read(len(_ARRAY))
        if head == _ARRAY:
            raise NetworkError(f"{file} holds one array, without a name", next_step)
        if not head.startswith(_ARCHIVE):  # numpy would take it for a pickle
            raise NetworkError(f"{file} is not an .npz file", next_step)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except NetworkError:
        raise
    except Exception as error:  # zipfile, zlib, tokenize, ...: any error of a damaged file
        raise NetworkError(f"{file} cannot be read as arrays: {brief(error)}", next_step) from error


def _fitted(array: Array, shape: Sequence[int | str], dtype: str, file: Path, name: str) -> Array:
    """Return ``array`` in the type ``dtype``. Raises :class:`NetworkError`."""
    wanted, where = numpy_dtype(dtype), f"{file}: {name}"
    matches = len(array.shape) == len(shape) and all(
        isinstance(extent, str) or extent == own for extent, own in zip(shape, array.shape, strict=True)
    )
    if not matches:
        raise NetworkError(f"{where} has the shape {list(array.shape)}", f"give {name} the shape {_said(shape)}")
    if dtype == "bfloat16" and array.dtype.itemsize == 2 and array.dtype.kind == "V":
        return array.view(wanted)  # numpy's files do not know the type
    kept = array.dtype == wanted
    if not kept and is_float(dtype):
        kept = array.dtype.kind == "f"
    elif not kept and array.dtype.kind in "iub":
        kept = _holds(wanted, array)
    if not kept:
        raise NetworkError(f"{where} is {array.dtype.name} and does not fit {dtype}", f"save {name} as {dtype}")
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array.astype(wanted)).reshape(array.shape)
    if is_float(dtype) and (np.isfinite(array) & ~np.isfinite(cast.astype(np.float64))).any():
        raise NetworkError(f"{where} has values that are infinite in {dtype}", f"save {name} as {dtype}")
    return cast


def _holds(wanted: np.dtype[np.generic], array: Array) -> bool:
    """Return true if all integers or booleans of ``array`` are values of the type ``wanted``."""
    if wanted.kind not in "iub":
        return False
    if not array.size:
        return True
    low, high = (0, 1) if wanted.kind == "b" else (np.iinfo(wanted).min, np.iinfo(wanted).max)  # type: ignore[type-var]
    return bool(low <= int(array.min()) and int(array.max()) <= high)
