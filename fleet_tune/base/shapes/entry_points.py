"""Entry points of a network: named parts of the range of its dynamic dimensions.

A decoder reads a prompt, of many tokens with an empty cache, and then takes steps of one token. Both are one network,
which has its weights once: ``prompt: past=0`` and ``step: tokens=1`` are names for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.dimensions import Bounds, Dimension, Extents, parse_bounds

_FORM = re.compile(r"([^\W\d]\w*)\s*:(.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class EntryPoint:
    """A part of the range, by its name."""

    name: str
    bounds: tuple[Bounds, ...]
    """Of the dimensions that have fewer extents in it. The others have all of theirs."""

    def __str__(self) -> str:
        """The text that :func:`parse_entry_point` reads."""
        return f"{self.name}: {', '.join(map(str, self.bounds))}".rstrip()

    def __contains__(self, extents: Extents) -> bool:
        return self.wrong(extents) is None

    def wrong(self, extents: Extents) -> Bounds | None:
        """Return the first bounds that ``extents`` are not within; None if they are within all."""
        return next((each for each in self.bounds if extents[each.name] not in each), None)

    def typical(self, dimensions: Sequence[Dimension]) -> Extents:
        """Return, of the extents in it, those in which most of the time is spent by the weights of ``dimensions``."""
        within = {each.name: each for each in self.bounds}
        return {each.name: _typical(each, within.get(each.name, each)) for each in dimensions}

    def among(self, dimensions: Mapping[str, Dimension]) -> EntryPoint:
        """Return it without bounds of fixed dimensions. ``dimensions``: all that the network has, by name. Raises
        :class:`RequestError` for bounds of another one, and for wider ones."""
        for each in self.bounds:
            whole = dimensions.get(each.name)
            if whole is None:
                raise RequestError(
                    f"the entry point {self.name} has bounds of {each.name!r}, which is no dynamic dimension",
                    f"give bounds of {' or '.join(map(repr, dimensions))}",
                )
            if each.least not in whole or each.most not in whole:
                raise RequestError(
                    f"the entry point {self.name} has {each}, and the network has {whole}", "give bounds within these"
                )
        return EntryPoint(self.name, tuple(each for each in self.bounds if not dimensions[each.name].is_fixed))


def is_entry_point(text: str) -> bool:
    """Return true for a text that has the form of an entry point."""
    return _FORM.fullmatch(text.strip()) is not None


def parse_entry_point(text: str) -> EntryPoint:
    """Return the entry point of ``step: tokens=1, past=1..1023``. Raises :class:`RequestError`."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{text.strip()[:60]!r} is no entry point", 'write it as "step: tokens=1"')
    # Without bounds it is the whole range: those of dimensions that the network has fixed are left out.
    bounds = parse_bounds(match[2]) if match[2].strip() else ()
    names = [each.name for each in bounds]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"the entry point {match[1]} has two bounds of {twice!r}", "give it one")
    return EntryPoint(match[1], bounds)


def _typical(dimension: Dimension, bounds: Bounds) -> int:
    weights = [(extent * weight, extent) for extent, weight in dimension.weights if extent in bounds]
    if weights:
        return max(weights)[1]
    return min(max(dimension.typical, bounds.least), bounds.most)
