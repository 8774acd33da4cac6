"""The shapes that a network is tuned for: its dynamic dimensions, and named parts of their range.

Their text has the bounds, then the weights, then the entry points:
``tokens=1..512, past=0..1023; tokens=16:0.7,512:0.3; step: tokens=1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.dimensions import Dimension, Extents, Weights, parse_dimensions, parse_weights
from fleet_tune.base.shapes.entry_points import EntryPoint, is_entry_point, parse_entry_point

_MOST_FREQUENT = 4


@dataclass(frozen=True)
class Shapes:
    """The shapes that a network is tuned for. Raises :class:`RequestError` for names that occur twice."""

    dimensions: tuple[Dimension, ...]
    entry_points: tuple[EntryPoint, ...] = ()

    def __post_init__(self) -> None:
        twice = _twice([each.name for each in self.dimensions])
        if twice is not None:
            raise RequestError(f"the dimension {twice!r} has two bounds", "give it one")
        twice = _twice([each.name for each in self.entry_points])
        if twice is not None:
            raise RequestError(f"two entry points are called {twice!r}", "give each a name of its own")

    def __str__(self) -> str:
        """Return the text that :func:`parse_shapes` reads."""
        bounds = [", ".join(map(str, self.dimensions))] if self.dimensions else []
        weights = [each.weights_text for each in self.dimensions if each.weights_text]
        return "; ".join([*bounds, *weights, *map(str, self.entry_points)])

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
        at these. Empty if all dimensions are fixed."""
        return {each.name: each.typical for each in self.dynamic}

    @property
    def frequent(self) -> tuple[tuple[Extents, float], ...]:
        """The extents in which most of the time is spent, if time grows with them, at most four, each with how often it
        occurs. One dimension varies at a time; the others have their typical extents. Empty if all dimensions are
        fixed."""
        shares: dict[tuple[int, ...], float] = {}
        weights: dict[tuple[int, ...], float] = {}
        for each in self.dynamic:
            total = sum(weight for _, weight in each.weights)
            for extent, weight in each.weights:
                at = tuple({**self.typical, each.name: extent}.values())
                weights[at] = weights.get(at, 0.0) + weight / total
                shares[at] = shares.get(at, 0.0) + extent * weight / (each.typical * total)
        found = sorted((at for at, share in shares.items() if share), key=lambda at: shares[at], reverse=True)
        return tuple((dict(zip(self.typical, at, strict=True)), weights[at]) for at in found[:_MOST_FREQUENT])

    @property
    def samples(self) -> tuple[Extents, ...]:
        """Extents that show the range of the network, ascending: the samples of each dimension while the other
        dimensions are typical, and the typical extents of each entry point. Empty if all dimensions are fixed."""
        samples = ({**self.typical, each.name: extent} for each in self.dynamic for extent in each.samples)
        return _ascending([*samples, *(each.typical(self.dynamic) for each in self.entry_points)])

    @property
    def others(self) -> tuple[Extents, ...]:
        """Extents besides the typical ones at which a network is compared with its framework, ascending:
        :attr:`samples`, extents with a tile of their own, and the least, middle and largest extents of all dimensions
        together. They take each number of rows of a tile, and several tiles. Empty if all dimensions are fixed."""
        alike = (
            {each.name: extent for each, extent in zip(self.dynamic, extents, strict=True)}
            for extents in zip(*((each.least, each.between, each.most) for each in self.dynamic), strict=True)
        )
        exact = (
            {**self.typical, each.name: extent}
            for each in self.dynamic
            for most in each.tile_sizes
            for extent in each.exact_sizes(most)
        )
        return tuple(each for each in _ascending([*self.samples, *exact, *alike]) if each != self.typical)

    def with_weights(self, weights: Mapping[str | None, Weights]) -> Shapes:
        """Return the same shapes with ``weights``, by the names of their dimensions. The name None stands for the only
        dynamic dimension. Raise :class:`RequestError`."""
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
        dimensions = tuple(replace(each, weights=given.get(each.name, each.weights)) for each in self.dimensions)
        return replace(self, dimensions=dimensions)


def parse_shapes(text: str) -> Shapes:
    """Return the shapes that ``str`` has written as ``text``. Raise :class:`RequestError`."""
    bounds, *rest = text.split(";") if not is_entry_point(text.partition(";")[0]) else ["", *text.split(";")]
    entry_points = tuple(parse_entry_point(each) for each in rest if is_entry_point(each))
    weights = "; ".join(each for each in rest if not is_entry_point(each) and each.strip())
    shapes = Shapes(parse_dimensions(bounds) if bounds or not entry_points else (), entry_points)
    return shapes.with_weights(parse_weights(weights)) if weights else shapes


def _ascending(points: Iterable[Extents]) -> tuple[Extents, ...]:
    """Return points in ascending order, each once."""
    found = {tuple(each.values()): each for each in points}
    return tuple(found[extents] for extents in sorted(found))


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)
