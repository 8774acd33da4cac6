"""The options of a network's shapes: bounds, and weights as text or in a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet_tune.base.config import values
from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.dimensions import (
    MOST_EXTENT,
    Weights,
    parse_weights,
    weight_of,
)
from fleet_tune.base.shapes.entry_points import is_entry_point
from fleet_tune.base.shapes.shapes import Shapes, parse_shapes

_MOST_BYTES = MOST_EXTENT * 64


def bounds(value: Any, flag: str) -> Shapes:
    """Return the shapes of ``tokens=1..512, past=0..1023; step: tokens=1``, without weights. Raise
    :class:`RequestError`."""
    if not isinstance(value, str):
        raise RequestError(
            f"bounds are text, not {values.shown(value)}", f'give them with {flag} as "n=1..32, tokens=128"'
        )
    _, *rest = value.split(";")
    wrong = next((each for each in rest if not is_entry_point(each)), None)
    if wrong is not None:
        raise RequestError(
            f"{values.shown(wrong.strip())} is no entry point",
            f'write {flag} as "tokens=1..512; step: tokens=1"; weights have an option of their own',
        )
    return parse_shapes(value)


def weights(value: Any, flag: str) -> dict[str | None, Weights]:
    """Return the weights of ``n=1:0.7,8:0.2; tokens=16:0.5``, or of a file, by the names of their dimensions. The name
    is None if the lines of the file have no names. Raise :class:`RequestError`."""
    if isinstance(value, str) and "=" in value and not os.path.isfile(value):
        return parse_weights(value)
    file = values.path("a file of weights", value, flag)
    if not os.path.isfile(file):
        raise RequestError(
            f"there is no file {file}", f'give {flag} a file of lines "extent weight", or "n=1:0.7,8:0.2,32:0.1"'
        )
    return _read(file)


def asked_shapes(shapes: Shapes | None, given: Mapping[str | None, Weights] | None) -> Shapes | None:
    """Return the shapes of both options; ``None`` if neither is given. Raise :class:`RequestError`."""
    if given is None:
        return shapes
    if shapes is None:
        raise RequestError("weights say how often an extent comes, and there are no bounds", "give --shapes too")
    return shapes.with_weights(given)


def shapes_given(shapes: str | None, shapes_weights: str | None) -> Shapes | None:
    """Return the shapes of both options, as they are written on the command line. Raise :class:`RequestError`."""
    asked = None if shapes is None else bounds(shapes, "--shapes")
    return asked_shapes(asked, None if shapes_weights is None else weights(shapes_weights, "--shapes-weights"))


def _read(file: Path) -> dict[str | None, Weights]:
    """Return the weights in ``file``: lines of an extent and its weight, or of a name and these, with commas or spaces
    between. Empty lines, a heading in the first line, and text after a ``#`` are ignored."""
    next_step = 'write lines "extent weight", or "name extent weight" for several dimensions'
    try:
        with file.open(encoding="utf-8-sig") as opened:
            text = opened.read(_MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file} cannot be read as text: {error}", next_step) from error
    if len(text) > _MOST_BYTES:
        raise RequestError(f"{file} is larger than {_MOST_BYTES} bytes", next_step)
    found: dict[str | None, list[tuple[int, float]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words or (number == 1 and not any(character.isdigit() for character in line)):
            continue
        try:
            *name, extent, weight = words if len(words) > 1 else ("", "")
            key = " ".join(name) or None
            if len(name) > 1 or any((key is None) != (other is None) for other in found):
                raise RequestError("no pair", "")
            found.setdefault(key, []).append(weight_of(extent, weight))
        except RequestError as error:
            problem = f"{file}, line {number}: {values.shown(line)} is no extent with its weight"
            raise RequestError(problem, next_step) from error
    if not found:
        raise RequestError(f"{file} has no weights", next_step)
    return {name: tuple(sorted(pairs)) for name, pairs in found.items()}
