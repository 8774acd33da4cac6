"""Bounds of a network's dynamic dimensions, and how often each extent comes.

Their text is what ``--shapes`` and ``--shapes-weights`` take: ``n=1..32, tokens=128`` and ``n=1:0.7,8:0.2,32:0.1``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleet_tune.base.errors import RequestError

MOST_EXTENT = 2**16
"""Largest extent that a dynamic dimension may have."""

Weights = tuple[tuple[int, float], ...]
"""Extents, ascending, each with its weight: a number that says how often it comes relative to the others."""

_NAME = r"\w+"
_BOUNDS = re.compile(rf"({_NAME})\s*=\s*(\d+)(?:\s*\.\.\s*(\d+))?", re.ASCII)
_WEIGHT = re.compile(r"(\d+)\s*:\s*([\d.eE+-]+)", re.ASCII)
_WEIGHTS = re.compile(rf"({_NAME})\s*=(.*)", re.ASCII | re.DOTALL)
_MOST_DIGITS = 9
_LONGEST_SHOWN = 60
_BOUNDS_FORM = 'write them as "n=1..32, tokens=128"'
_WEIGHTS_FORM = 'write them as "n=1:0.7,8:0.2,32:0.1"'


@dataclass(frozen=True)
class Dimension:
    """A named dimension, which occurs in one or several inputs of a network."""

    name: str
    least: int
    """Smallest extent."""
    most: int
    """Largest extent. A dimension with one extent is fixed."""

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name, re.ASCII):
            raise RequestError(f"{_shown(self.name)} is no name of a dimension", "use letters, digits and underscores")
        if not 1 <= self.least <= MOST_EXTENT or not 1 <= self.most <= MOST_EXTENT:
            wrong = self.most if 1 <= self.least <= MOST_EXTENT else self.least
            raise RequestError(
                f"the dimension {self.name!r} cannot have the extent {wrong}", f"give extents from 1 to {MOST_EXTENT}"
            )
        if self.least > self.most:
            raise RequestError(
                f"the bounds of the dimension {self.name!r} are the wrong way round: {self.least} is more than "
                f"{self.most}",
                f'write "{self.name}={self.most}..{self.least}"',
            )

    def __str__(self) -> str:
        return f"{self.name}={self.least}" + ("" if self.is_fixed else f"..{self.most}")

    @property
    def is_fixed(self) -> bool:
        """True if it has one extent alone."""
        return self.least == self.most

    @property
    def samples(self) -> tuple[int, ...]:
        """The ends and the powers of two between them, ascending."""
        powers = (1 << at for at in range(MOST_EXTENT.bit_length()))
        return tuple(sorted({self.least, self.most, *(n for n in powers if self.least < n < self.most)}))

    def __contains__(self, extent: int) -> bool:
        return self.least <= extent <= self.most


@dataclass(frozen=True)
class Shapes:
    """The shapes that a network is tuned for.

    Raises :class:`RequestError` for names that occur twice, more than one dynamic dimension, and weights that do not
    belong to it.
    """

    dimensions: tuple[Dimension, ...]
    """One of them at most is dynamic; the others are fixed."""
    weights: Weights
    """The extents that the dynamic dimension is known to have. Empty if there is none."""

    def __post_init__(self) -> None:
        names = [each.name for each in self.dimensions]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"the dimension {twice!r} has two bounds", "give it one")
        dynamic = [each for each in self.dimensions if not each.is_fixed]
        if len(dynamic) > 1:
            raise RequestError(
                f"the dimensions {', '.join(each.name for each in dynamic)} are dynamic, and a network can have one "
                "that is",
                f'fix the others: --shapes "{_one_left(self.dimensions, dynamic[0])}"',
            )
        _check_weights(self.weights, dynamic[0] if dynamic else None)

    def __str__(self) -> str:
        """The text that :func:`parse_shapes` reads."""
        bounds = ", ".join(map(str, self.dimensions))
        if self.dynamic is None or self.weights == _equal(self.dynamic):
            return bounds
        return f"{bounds}; {self.dynamic.name}={','.join(f'{n}:{_number(weight)}' for n, weight in self.weights)}"

    @property
    def dynamic(self) -> Dimension | None:
        """The dynamic dimension; None where all are fixed."""
        return next((each for each in self.dimensions if not each.is_fixed), None)

    @property
    def samples(self) -> tuple[int, ...]:
        """The extents for which kernels are tuned, ascending: the ends and the powers of two between them. Empty where
        all dimensions are fixed."""
        return () if self.dynamic is None else self.dynamic.samples

    @property
    def typical(self) -> int:
        """The extent in which most of the time is spent, if time grows with it: the network is tuned, compared with its
        framework and timed at this one. ValueError where all dimensions are fixed."""
        return max(self.weights, key=lambda each: (each[0] * each[1], each[0]))[0]

    @property
    def others(self) -> tuple[int, ...]:
        """Extents besides the typical one at which a network is compared with its framework: each number of rows of a
        tile, and one of several tiles. Empty where all dimensions are fixed."""
        if self.dynamic is None:
            return ()
        least, most = self.dynamic.least, self.dynamic.most
        between = min((least + most) // 2 | 1, most)
        return tuple(sorted({*self.samples, between} - {self.typical}))


def shapes_of(dimensions: Iterable[Dimension], weights: Iterable[tuple[int, float]] = ()) -> Shapes:
    """Return the shapes with these weights; without any, the ends of the dynamic dimension and the powers of two
    between them count the same. Raises :class:`RequestError`."""
    dimensions, given = tuple(dimensions), tuple(sorted(weights))
    dynamic = next((each for each in dimensions if not each.is_fixed), None)
    return Shapes(dimensions, given or (() if dynamic is None else _equal(dynamic)))


def parse_shapes(text: str) -> Shapes:
    """Return the shapes whose text ``str(shapes)`` is. Raises :class:`RequestError`."""
    bounds, _, weights = text.partition(";")
    if not weights.strip():
        return shapes_of(parse_dimensions(bounds))
    name, pairs = parse_weights(weights)
    return weighted(parse_dimensions(bounds), pairs, name)


def weighted(dimensions: tuple[Dimension, ...], weights: Weights, name: str | None = None) -> Shapes:
    """Return the shapes with weights that were given for the dimension ``name``; None: for the dynamic one. Raises
    :class:`RequestError`."""
    shapes = shapes_of(dimensions)
    dynamic = shapes.dynamic
    if dynamic is None:
        raise RequestError(
            "weights are for a dynamic dimension, and there is none",
            'give its bounds with --shapes "n=1..32", or leave the weights out',
        )
    if name is not None and name != dynamic.name:
        raise RequestError(
            f"the weights are those of {name!r}, and the dynamic dimension is {dynamic.name!r}",
            f"give the weights of {dynamic.name}",
        )
    return shapes_of(dimensions, weights)


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """Return the dimensions of ``n=1..32, tokens=128``, in order. Raises :class:`RequestError`."""
    found = []
    for part in text.split(","):
        match = _BOUNDS.fullmatch(part.strip())
        if match is None:
            raise RequestError(f"{_shown(part.strip())} is no name with its bounds", _BOUNDS_FORM)
        name, least, most = match.groups()
        found.append(Dimension(name, _extent(least), _extent(most or least)))
    return tuple(found)


def parse_weights(text: str) -> tuple[str, Weights]:
    """Return the name and the weights of ``n=1:0.7,8:0.2,32:0.1``. Raises :class:`RequestError`."""
    match = _WEIGHTS.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{_shown(text)} is no list of weights", _WEIGHTS_FORM)
    pairs = []
    for part in match[2].split(","):
        pair = _WEIGHT.fullmatch(part.strip())
        if pair is None:
            raise RequestError(f"{_shown(part.strip())} is no extent with its weight", _WEIGHTS_FORM)
        pairs.append(weight_of(*pair.groups()))
    return match[1], tuple(sorted(pairs))


def weight_of(extent: str, weight: str) -> tuple[int, float]:
    """Return an extent and its weight, from their digits. Raises :class:`RequestError`."""
    try:
        return _extent(extent), float(weight)
    except ValueError:
        raise RequestError(f"{_shown(f'{extent} {weight}')} is no extent with its weight", _WEIGHTS_FORM) from None


def _check_weights(weights: Weights, dynamic: Dimension | None) -> None:
    extents = [extent for extent, _ in weights]
    if extents != sorted(set(extents)):
        again = next((n for n in extents if extents.count(n) > 1), None)
        raise RequestError(f"the extent {again} has two weights", "give each extent one weight")
    for extent, weight in weights:
        if dynamic is None or extent not in dynamic:
            within = "no dimension is dynamic" if dynamic is None else f"the bounds are {dynamic}"
            raise RequestError(
                f"the extent {extent} has a weight, and {within}", "give weights of extents in range, or other bounds"
            )
        if not 0 <= weight < math.inf:
            raise RequestError(f"the weight of the extent {extent} is {weight:g}", "give a number from 0 up")
    total = sum(weight for _, weight in weights)
    if dynamic is not None and not 0 < total < math.inf:
        raise RequestError("the weights have no sum above 0", "give one extent at least a weight above 0")


def _equal(dynamic: Dimension) -> Weights:
    return tuple((extent, 1.0) for extent in dynamic.samples)


def _one_left(dimensions: Iterable[Dimension], left: Dimension) -> str:
    return ", ".join(str(each) if each == left else f"{each.name}={each.most}" for each in dimensions)


def _extent(digits: str) -> int:
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(digits)
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS


def _number(weight: float) -> str:
    return repr(float(weight)).removesuffix(".0")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}...")
