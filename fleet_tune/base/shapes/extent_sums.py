"""Extents that are sums of dynamic dimensions: the mask of a decoder covers ``past + tokens`` places."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"\w+", re.ASCII)
_TERM = re.compile(r"(?:(\d{1,9})|(?:(\d{1,9})\*)?(\w*[A-Za-z_]\w*))", re.ASCII)


@dataclass(frozen=True)
class ExtentSum:
    """A sum of multiples of dimensions and a number, or a number alone."""

    terms: tuple[tuple[str, int], ...]
    """Names of the dimensions, each once, with their factors, from 1 up."""
    number: int = 0
    """The number that is added, from 0 up."""

    @classmethod
    def of(cls, terms: Iterable[tuple[str, int]], number: int = 0) -> ExtentSum:
        """Return the sum of these terms. Several of them may have the same name."""
        found: dict[str, int] = {}
        for name, factor in terms:
            found[name] = found.get(name, 0) + factor
        return cls(tuple(found.items()), number)

    @classmethod
    def parse(cls, text: str) -> ExtentSum:
        """Return the sum that ``str`` has written as ``text``. Raise ValueError for a text that is no sum."""
        if _NAME.fullmatch(text):
            return cls(((text, 1),))
        terms: list[tuple[str, int]] = []
        number = 0
        for part in text.split("+"):
            match = _TERM.fullmatch(part.strip())
            if match is None:
                raise ValueError(f"{text[:60]!r} is no sum of dimensions")
            if match[3] is None:
                number += int(match[1])
            else:
                terms.append((match[3], int(match[2] or 1)))
        if not terms or any(not factor for _, factor in terms):
            raise ValueError(f"{text[:60]!r} is no sum of dimensions")
        return cls.of(terms, number)

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms]
        return " + ".join([*parts, *([str(self.number)] if self.number or not parts else [])])

    def __add__(self, other: ExtentSum) -> ExtentSum:
        return ExtentSum.of([*self.terms, *other.terms], self.number + other.number)

    def __mul__(self, factor: int) -> ExtentSum:
        return ExtentSum.of([(name, of * factor) for name, of in self.terms if factor], self.number * factor)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(name for name, _ in self.terms)

    @property
    def is_name(self) -> bool:
        """True if the sum is a single dimension."""
        return not self.number and [factor for _, factor in self.terms] == [1]

    def at(self, extents: Mapping[str, int]) -> int:
        """Return the value of the sum at these extents of all its dimensions."""
        return self.number + sum(factor * extents[name] for name, factor in self.terms)


Shape = Sequence[int | str]
"""A shape. A dynamic extent is the text of a sum, which mostly is a name alone."""


def sums_of(shapes: Sequence[Shape]) -> tuple[tuple[int, int, ExtentSum], ...]:
    """Return the extents of ``shapes`` that are sums and not single dimensions: the index of the shape, the axis and
    the sum. Raise ValueError for a text that is no sum."""
    found = (
        (at, axis, ExtentSum.parse(extent))
        for at, shape in enumerate(shapes)
        for axis, extent in enumerate(shape)
        if isinstance(extent, str)
    )
    return tuple(each for each in found if not each[2].is_name)
