"""The inputs that a compiled network takes: names, types, and shapes, whose dimensions may be dynamic."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from devices.networks.array_conversion import is_torch
from fleet_tune.base.errors import UserError
from fleet_tune.base.shapes.dimensions import Dimension, in_words
from fleet_tune.base.shapes.extent_sums import sums_of
from fleet_tune.base.shapes.shapes import Shapes, parse_shapes


class NetworkInputError(UserError, ValueError):
    """Inputs that do not fit the network: pass others."""


class InputShapes:
    """The inputs of a network.

    Args:
        manifest: the manifest of the network's folder.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self._inputs = tuple((each["name"], tuple(each["shape"]), each["dtype"]) for each in manifest["inputs"])
        shapes = parse_shapes(manifest["shapes"]) if "shapes" in manifest else Shapes(())
        self._dynamic = {each.name: each for each in shapes.dynamic}
        self._entry_points = {each.name: each for each in shapes.entry_points}
        self._places = {
            extent: (at, axis)
            for at, (_, shape, _) in reversed(list(enumerate(self._inputs)))
            for axis, extent in enumerate(shape)
            if extent in self._dynamic
        }
        self._sums = sums_of([shape for _, shape, _ in self._inputs])

    @property
    def has_sums(self) -> bool:
        """True if an extent is a sum of dynamic dimensions."""
        return bool(self._sums)

    @property
    def is_dynamic(self) -> bool:
        """True if it takes inputs of several shapes."""
        return bool(self._dynamic)

    @property
    def entry_points(self) -> tuple[str, ...]:
        """Names of its entry points."""
        return tuple(self._entry_points)

    def check_entry_point(self, name: str, inputs: Sequence[Any]) -> None:
        """Raise :class:`NetworkInputError` for inputs that the network does not take at an entry point."""
        self.check(inputs)
        extents = self.extents_of(inputs)
        wrong = self._entry_points[name].wrong(extents)
        if wrong is not None:
            raise NetworkInputError(
                f"{name} takes {wrong}, and {in_words({wrong.name: extents[wrong.name]})} is given",
                "pass inputs in range, or call the network itself, or another entry point",
            )

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise :class:`NetworkInputError` for inputs that the network does not take."""
        if len(inputs) != len(self._inputs):
            names = ", ".join(name for name, _, _ in self._inputs)
            raise NetworkInputError(
                f"{len(inputs)} inputs given, the network takes {len(self._inputs)}", f"pass {names}"
            )
        extents: dict[str, int] = {}
        for value, (name, shape, dtype) in zip(inputs, self._inputs, strict=True):
            if not (isinstance(value, np.ndarray) or is_torch(value)):
                raise NetworkInputError(
                    f"input {name!r} is a {type(value).__name__}", "pass a numpy array or a torch tensor"
                )
            given = name_of(value.dtype)
            if value.shape == shape and given == dtype:
                continue
            if given != dtype or not _has_form(value.shape, shape):
                raise NetworkInputError(
                    f"input {name!r} is {given}{list(value.shape)}", f"pass {dtype}{_shown(shape)}{self._range}"
                )
            self._check_extents(name, value.shape, shape, extents)
        for at, axis, total in self._sums:
            extent, wanted = inputs[at].shape[axis], total.at(extents)
            if extent != wanted:
                raise NetworkInputError(
                    f"input {self._inputs[at][0]!r} has {total} = {extent}, where {in_words(extents)}",
                    f"pass an input whose dimension {axis} is {wanted}",
                )

    def bounds(self, at: int, axis: int) -> Dimension:
        """Return the dynamic dimension that an axis of an input has. Raises KeyError for a fixed one."""
        return self._dynamic[str(self._inputs[at][1][axis])]

    def extents_of(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Return the extents of the dynamic dimensions in inputs that the network takes."""
        return {name: inputs[at].shape[axis] for name, (at, axis) in self._places.items()}

    def _check_extents(
        self, name: str, given: Sequence[int], shape: Sequence[int | str], extents: dict[str, int]
    ) -> None:
        for extent, wanted in zip(given, shape, strict=True):
            if not isinstance(wanted, str) or wanted not in self._dynamic:
                continue
            if extent not in self._dynamic[wanted]:
                raise NetworkInputError(
                    f"input {name!r} has {wanted} = {extent}, and the network was compiled for {self._dynamic[wanted]}",
                    "pass inputs in range, or tune the network for a wider one with --shapes",
                )
            if extents.setdefault(wanted, extent) != extent:
                raise NetworkInputError(
                    f"input {name!r} has {wanted} = {extent}, and another place has {extents[wanted]}",
                    f"pass inputs that agree in {wanted}",
                )

    @property
    def _range(self) -> str:
        return f" with {', '.join(map(str, self._dynamic.values()))}" if self._dynamic else ""


def _has_form(given: Sequence[int], shape: Sequence[int | str]) -> bool:
    return len(given) == len(shape) and all(
        isinstance(wanted, str) or extent == wanted for extent, wanted in zip(given, shape, strict=True)
    )


def _shown(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


@functools.cache
def name_of(dtype: Any) -> str:
    """Return the name of a numpy or torch type. Cached: numpy takes two microseconds for it, as long as a kernel of a
    small network runs."""
    return str(dtype).removeprefix("torch.")
