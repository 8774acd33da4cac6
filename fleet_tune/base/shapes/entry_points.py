"""Entry points of a network: named parts of the range of its dynamic dimensions.

A decoder reads a prompt, of many tokens with an empty cache, and then takes steps of one token. Both are one network
with one copy of its weights: ``prompt: past=0`` and ``step: tokens=1`` are names for them.
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
    """A named part of the range."""

    name: str
    bounds: tuple[Bounds, ...]
    """Bounds of the dimensions that have fewer extents in this part. All other dimensions have their whole range."""

    def __str__(self) -> str:
        """Return the text that :func:`parse_entry_point` reads."""
        return f"{self.name}: {', '.join(map(str, self.bounds))}".rstrip()

    def __contains__(self, extents: Extents) -> bool:
        return self.wrong(extents) is None

    def wrong(self, extents: Extents) -> Bounds | None:
        """Return the first bounds that ``extents`` violate; ``None`` if there are none."""
        return next((each for each in self.bounds if extents[each.name] not in each), None)

    def typical(self, dimensions: Sequence[Dimension]) -> Extents:
        """Return the extents within this part in which most of the time is spent, by the weights of ``dimensions``."""
        within = {each.name: each for each in self.bounds}
        return {each.name: _typical(each, within.get(each.name, each)) for each in dimensions}

    def among(self, dimensions: Mapping[str, Dimension]) -> EntryPoint:
        """Return the entry point without bounds of fixed dimensions. ``dimensions``: all dimensions of the network, by
        name. Raise :class:`RequestError` for bounds of an unknown dimension, and for bounds that are wider than the
        network's."""
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
    """Return the entry point of ``step: tokens=1, past=1..1023``. Raise :class:`RequestError`."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{text.strip()[:60]!r} is no entry point", 'write it as "step: tokens=1"')
    # A text without bounds stands for the whole range: it is written if :meth:`EntryPoint.among` left out all bounds.
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
