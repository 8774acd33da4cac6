"""Bounds of a network's dynamic dimensions, and how often each extent comes.

Their text is what ``--shapes`` and ``--shapes-weights`` take: ``n=1..32, tokens=1..128`` and
``n=1:0.7,8:0.2,32:0.1; tokens=16:0.5,128:0.5``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fleet_tune.base.errors import RequestError

MOST_EXTENT = 2**16
"""Largest extent that a dynamic dimension may have."""

Weights = tuple[tuple[int, float], ...]
"""Extents, ascending, each with its weight: a number that says how often it comes relative to the others."""

Extents = Mapping[str, int]
"""An extent of each dynamic dimension, by its name."""

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
    """Smallest extent. 0: a cache is empty before the first token."""
    most: int
    """Largest extent. A dimension with one extent is fixed."""
    weights: Weights = ()
    """The extents that it is known to have: :attr:`samples`, equally, where none are given. A fixed dimension has
    none."""

    def __post_init__(self) -> None:
        """Raise :class:`RequestError` for a wrong name, wrong bounds, and weights that do not belong to them."""
        if not re.fullmatch(_NAME, self.name, re.ASCII):
            raise RequestError(f"{_shown(self.name)} is no name of a dimension", "use letters, digits and underscores")
        if self.least == self.most == 0:
            raise RequestError(
                f"the dimension {self.name!r} cannot have the extent 0 alone",
                f'give larger ones too: "{self.name}=0..32"',
            )
        if not 0 <= self.least <= MOST_EXTENT or not 0 <= self.most <= MOST_EXTENT:
            wrong = self.most if 0 <= self.least <= MOST_EXTENT else self.least
            raise RequestError(
                f"the dimension {self.name!r} cannot have the extent {wrong}", f"give extents from 0 to {MOST_EXTENT}"
            )
        if self.least > self.most:
            raise RequestError(
                f"the bounds of the dimension {self.name!r} are the wrong way round: {self.least} is more than "
                f"{self.most}",
                f'write "{self.name}={self.most}..{self.least}"',
            )
        if not self.weights and not self.is_fixed:
            object.__setattr__(self, "weights", self._equal)  # the way of a frozen class
        self._check_weights()

    def __str__(self) -> str:
        """Its bounds, as ``--shapes`` takes them."""
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

    @property
    def typical(self) -> int:
        """The extent in which most of the time is spent, if time grows with it: at least 1."""
        return max(self.weights, key=lambda each: (each[0] * each[1], each[0]))[0] if self.weights else self.least

    @property
    def tile_sizes(self) -> tuple[int, ...]:
        """The numbers of rows of tiles, ascending: the powers of two, which one schedule fits, from the largest that is
        not above the smallest extent (1, if that is 0) to the largest that is not above :attr:`typical`."""
        return tuple(1 << at for at in range(max(self.least, 1).bit_length() - 1, self.typical.bit_length()))

    @property
    def between(self) -> int:
        """An odd extent in the middle: of several tiles."""
        return min((self.least + self.most) // 2 | 1, self.most)

    @property
    def weights_text(self) -> str:
        """Its weights, as ``--shapes-weights`` takes them; empty where they are those without any."""
        if self.weights == (() if self.is_fixed else self._equal):
            return ""
        return f"{self.name}={','.join(f'{n}:{_number(weight)}' for n, weight in self.weights)}"

    @property
    def _equal(self) -> Weights:
        return tuple((extent, 1.0) for extent in self.samples)

    def __contains__(self, extent: int) -> bool:
        return self.least <= extent <= self.most

    def _check_weights(self) -> None:
        extents = [extent for extent, _ in self.weights]
        if extents != sorted(set(extents)):
            again = next((n for n in extents if extents.count(n) > 1), None)
            raise RequestError(f"the extent {again} of {self.name} has two weights", "give each extent one weight")
        for extent, weight in self.weights:
            if self.is_fixed or extent not in self:
                raise RequestError(
                    f"the extent {extent} of {self.name} has a weight, and the bounds are {self}",
                    "give weights of extents in range, or other bounds",
                )
            if not 0 <= weight < math.inf:
                raise RequestError(
                    f"the weight of the extent {extent} of {self.name} is {weight:g}", "give a number from 0 up"
                )
        total = sum(weight for _, weight in self.weights)
        if self.weights and not 0 < total < math.inf:
            raise RequestError(
                f"the weights of {self.name} have no sum above 0", "give one extent at least a weight above 0"
            )
        if self.weights and not any(extent * weight for extent, weight in self.weights):
            raise RequestError(
                f"the weights of {self.name} are those of the extent 0 alone, at which nothing can be tuned",
                "give another extent a weight above 0",
            )


@dataclass(frozen=True)
class Shapes:
    """The shapes that a network is tuned for. Raises :class:`RequestError` for names that occur twice."""

    dimensions: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        names = [each.name for each in self.dimensions]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"the dimension {twice!r} has two bounds", "give it one")

    def __str__(self) -> str:
        """The text that :func:`parse_shapes` reads."""
        bounds = ", ".join(map(str, self.dimensions))
        return "; ".join([bounds, *(each.weights_text for each in self.dimensions if each.weights_text)])

    @property
    def dynamic(self) -> tuple[Dimension, ...]:
        """The dynamic dimensions."""
        return tuple(each for each in self.dimensions if not each.is_fixed)

    def __contains__(self, extents: Extents) -> bool:
        bounds = {each.name: each for each in self.dynamic}
        return extents.keys() == bounds.keys() and all(extent in bounds[name] for name, extent in extents.items())

    @property
    def typical(self) -> Extents:
        """The extents in which most of the time is spent: the network is tuned, compared with its framework and timed
        at these. Empty where all dimensions are fixed."""
        return {each.name: each.typical for each in self.dynamic}

    @property
    def samples(self) -> tuple[Extents, ...]:
        """Extents that show what the network takes, ascending: the samples of each dimension, with the others typical.
        Empty where all dimensions are fixed."""
        return _ascending({**self.typical, each.name: extent} for each in self.dynamic for extent in each.samples)

    @property
    def others(self) -> tuple[Extents, ...]:
        """Extents besides the typical ones at which a network is compared with its framework, the smallest first: each
        number of rows of a tile, and one of several tiles. Empty where all dimensions are fixed."""
        alike = (
            {each.name: extent for each, extent in zip(self.dynamic, extents, strict=True)}
            for extents in zip(*((each.least, each.between, each.most) for each in self.dynamic), strict=True)
        )
        return tuple(each for each in _ascending([*self.samples, *alike]) if each != self.typical)

    def with_weights(self, weights: Mapping[str | None, Weights]) -> Shapes:
        """Return the same with weights, by the names of their dimensions; None: of the only dynamic one. Raises
        :class:`RequestError`."""
        names = [each.name for each in self.dynamic]
        if not names:
            raise RequestError(
                "weights are for a dynamic dimension, and there is none",
                'give its bounds with --shapes "n=1..32", or leave the weights out',
            )
        if None in weights and len(names) > 1:
            raise RequestError(
                f"the weights do not say of which dimension they are, and {', '.join(names)} are dynamic",
                f'name it: "{names[0]}=1:0.7,8:0.2"',
            )
        given = {names[0] if name is None else name: pairs for name, pairs in weights.items()}
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            be = "dynamic dimension is" if len(names) == 1 else "dynamic dimensions are"
            raise RequestError(
                f"the weights are those of {unknown!r}, and the {be} {', '.join(map(repr, names))}",
                f"give the weights of {' or '.join(names)}",
            )
        return Shapes(tuple(replace(each, weights=given.get(each.name, each.weights)) for each in self.dimensions))


def in_words(extents: Extents) -> str:
    """Return extents as ``batch = 1, tokens = 16``."""
    return ", ".join(f"{name} = {extent}" for name, extent in extents.items())


def parse_shapes(text: str) -> Shapes:
    """Return the shapes whose text ``str(shapes)`` is. Raises :class:`RequestError`."""
    bounds, _, weights = text.partition(";")
    shapes = Shapes(parse_dimensions(bounds))
    return shapes.with_weights(parse_weights(weights)) if weights.strip() else shapes


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


def parse_weights(text: str) -> dict[str | None, Weights]:
    """Return the weights of ``n=1:0.7,8:0.2,32:0.1; tokens=16:0.5,512:0.5`` by the names of their dimensions. Raises
    :class:`RequestError`."""
    found: dict[str | None, Weights] = {}
    for part in text.split(";"):
        match = _WEIGHTS.fullmatch(part.strip())
        if match is None:
            raise RequestError(f"{_shown(part.strip())} is no list of weights", _WEIGHTS_FORM)
        if match[1] in found:
            raise RequestError(f"the dimension {match[1]!r} has two lists of weights", "give it one")
        pairs = []
        for item in match[2].split(","):
            pair = _WEIGHT.fullmatch(item.strip())
            if pair is None:
                raise RequestError(f"{_shown(item.strip())} is no extent with its weight", _WEIGHTS_FORM)
            pairs.append(weight_of(*pair.groups()))
        found[match[1]] = tuple(sorted(pairs))
    return found


def weight_of(extent: str, weight: str) -> tuple[int, float]:
    """Return an extent and its weight, from their digits. Raises :class:`RequestError`."""
    try:
        return _extent(extent), float(weight)
    except ValueError:
        raise RequestError(f"{_shown(f'{extent} {weight}')} is no extent with its weight", _WEIGHTS_FORM) from None


def _ascending(points: Iterable[Extents]) -> tuple[Extents, ...]:
    """Return points in ascending order, each once."""
    found = {tuple(each.values()): each for each in points}
    return tuple(found[extents] for extents in sorted(found))


def _extent(digits: str) -> int:
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(digits)
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS


def _number(weight: float) -> str:
    return repr(float(weight)).removesuffix(".0")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}...")
