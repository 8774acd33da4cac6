"""Dimensions whose extents are only known when a network runs: their bounds, and how often each extent occurs.

They are written as ``--shapes`` and ``--shapes-weights`` take them: ``n=1..32, tokens=1..128`` and
``n=1:0.7,8:0.2,32:0.1; tokens=16:0.5,128:0.5``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fleet_tune.base.errors import RequestError

MOST_EXTENT = 2**16
"""Largest extent that a dynamic dimension may have."""

Weights = tuple[tuple[int, float], ...]
"""Extents, ascending, each with its weight: how often it occurs relative to the others."""

Extents = Mapping[str, int]
"""An extent of each dynamic dimension, by its name."""

_MOST_ROWS = 7
"""Largest number of rows that are kept in registers together, in a tile whose number of rows is not a power of two."""
_MOST_EXACT = 4

_NAME = r"\w+"
_BOUNDS = re.compile(rf"({_NAME})\s*=\s*(\d+)(?:\s*\.\.\s*(\d+))?", re.ASCII)
_WEIGHT = re.compile(r"(\d+)\s*:\s*([\d.eE+-]+)", re.ASCII)
_WEIGHTS = re.compile(rf"({_NAME})\s*=(.*)", re.ASCII | re.DOTALL)
_MOST_DIGITS = 9
_LONGEST_SHOWN = 60
_BOUNDS_FORM = 'write them as "n=1..32, tokens=128"'
_WEIGHTS_FORM = 'write them as "n=1:0.7,8:0.2,32:0.1"'


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest extent of a named dimension."""

    name: str
    least: int
    """Smallest extent. 0: a cache is empty before the first token."""
    most: int
    """Largest extent. A dimension with one extent is fixed."""

    def __post_init__(self) -> None:
        """Raise :class:`RequestError` for a wrong name or wrong bounds."""
        if not re.fullmatch(_NAME, self.name, re.ASCII):
            raise RequestError(f"{_shown(self.name)} is no name of a dimension", "use letters, digits and underscores")
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

    def __str__(self) -> str:
        """Return the bounds as ``--shapes`` takes them."""
        return f"{self.name}={self.least}" + ("" if self.is_fixed else f"..{self.most}")

    def __contains__(self, extent: int) -> bool:
        return self.least <= extent <= self.most

    @property
    def is_fixed(self) -> bool:
        """True if there is only one extent."""
        return self.least == self.most


@dataclass(frozen=True)
class Dimension(Bounds):
    """A named dimension, which occurs in one or several inputs of a network."""

    weights: Weights = ()
    """Extents that the dimension is known to have, with their weights. Default: :attr:`samples`, with equal weights. A
    fixed dimension has none."""

    def __post_init__(self) -> None:
        """Raise :class:`RequestError` for a wrong name, wrong bounds, and weights that do not belong to them."""
        super().__post_init__()
        if self.most == 0:
            raise RequestError(
                f"the dimension {self.name!r} cannot have the extent 0 alone",
                f'give larger ones too: "{self.name}=0..32"',
            )
        if not self.weights and not self.is_fixed:
            object.__setattr__(self, "weights", self._equal)  # the only way in a frozen class
        self._check_weights()

    def __str__(self) -> str:
        return super().__str__()

    @property
    def samples(self) -> tuple[int, ...]:
        """The bounds and the powers of two between them, ascending."""
        powers = (1 << at for at in range(MOST_EXTENT.bit_length()))
        return tuple(sorted({self.least, self.most, *(n for n in powers if self.least < n < self.most)}))

    @property
    def typical(self) -> int:
        """The extent in which most of the time is spent, if time grows with it: at least 1."""
        return max(self.weights, key=lambda each: (each[0] * each[1], each[0]))[0] if self.weights else self.least

    @property
    def tile_sizes(self) -> tuple[int, ...]:
        """The numbers of rows of tiles, ascending: powers of two, so that one schedule fits all of them. The first is
        the largest that is not above the smallest extent (1 if that is 0), the last the largest that is not above
        :attr:`typical`."""
        return tuple(1 << at for at in range(max(self.least, 1).bit_length() - 1, self.typical.bit_length()))

    def exact_sizes(self, most: int) -> tuple[int, ...]:
        """Return the extents below ``most`` that get a tile of their own besides those of :attr:`tile_sizes`,
        ascending. They are the four weighted extents in which most time is spent, of those that are a power of two
        times 3, 5 or 7 (the rows that registers hold together). All other extents are computed by several tiles."""
        weighted = [
            (extent * weight, extent)
            for extent, weight in self.weights
            if self.tile_sizes[0] < extent < most and 1 < extent // (extent & -extent) <= _MOST_ROWS
        ]
        return tuple(sorted(extent for share, extent in sorted(weighted)[-_MOST_EXACT:] if share))

    @property
    def between(self) -> int:
        """An odd extent in the middle of the bounds, which takes several tiles."""
        return min((self.least + self.most) // 2 | 1, self.most)

    @property
    def weights_text(self) -> str:
        """The weights as ``--shapes-weights`` takes them; empty if they are the default."""
        if self.weights == (() if self.is_fixed else self._equal):
            return ""
        return f"{self.name}={','.join(f'{n}:{_number(weight)}' for n, weight in self.weights)}"

    @property
    def _equal(self) -> Weights:
        return tuple((extent, 1.0) for extent in self.samples)

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


def in_words(extents: Extents) -> str:
    """Return extents as ``batch = 1, tokens = 16``."""
    return ", ".join(f"{name} = {extent}" for name, extent in extents.items())


def parse_bounds(text: str) -> tuple[Bounds, ...]:
    """Return the bounds of ``n=1..32, tokens=128``, in order. Raise :class:`RequestError`."""
    found = []
    for part in text.split(","):
        match = _BOUNDS.fullmatch(part.strip())
        if match is None:
            raise RequestError(f"{_shown(part.strip())} is no name with its bounds", _BOUNDS_FORM)
        name, least, most = match.groups()
        found.append(Bounds(name, _extent(least), _extent(most or least)))
    return tuple(found)


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """Return the dimensions with the bounds of :func:`parse_bounds`. Raise :class:`RequestError`."""
    return tuple(Dimension(each.name, each.least, each.most) for each in parse_bounds(text))


def parse_weights(text: str) -> dict[str | None, Weights]:
    """Return the weights of ``n=1:0.7,8:0.2,32:0.1; tokens=16:0.5,512:0.5`` by the names of their dimensions. Raise
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
    """Return an extent and its weight, from their digits. Raise :class:`RequestError`."""
    try:
        return _extent(extent), float(weight)
    except ValueError:
        raise RequestError(f"{_shown(f'{extent} {weight}')} is no extent with its weight", _WEIGHTS_FORM) from None


def _extent(digits: str) -> int:
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(digits)
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS


def _number(weight: float) -> str:
    return repr(float(weight)).removesuffix(".0")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}...")
