"""Kernels over dynamic dimensions as tiles of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tvm.tirx import PrimFunc, Var

from devices.sketches.dynamic.joined_extents import factors
from devices.sketches.dynamic.rows import Rows, dynamic_extents, rows_of
from fleet_tune.base.shapes.dimensions import MOST_EXTENT, Dimension
from fleet_tune.base.shapes.shapes import Shapes


@dataclass(frozen=True)
class TiledRows:
    """A kernel whose rows are independent along all its dynamic extents."""

    rows: Mapping[Var, Mapping[int, Rows]]
    """The rows of its tensors along each extent (see :func:`devices.sketches.dynamic.rows.rows_of`)."""
    tiled: Var
    """The extent along which the kernel has tiles: the one with the largest typical extent. Along the others, one row
    is computed at a time."""
    dimension: Dimension
    """The network's dimension of the tiled extent."""

    @classmethod
    def of(cls, kernel: PrimFunc, shapes: Shapes) -> TiledRows | None:
        """Return the rows of a kernel of a network of these shapes. None if the kernel does not have such rows."""
        dimensions = dimensions_of(kernel, shapes)
        found = {extent: rows_of(kernel, extent) for extent in dimensions or ()}
        rows = {extent: each for extent, each in found.items() if each is not None}
        if not dimensions or len(rows) < len(dimensions):
            return None
        # Of equal extents the last one, which is the innermost in memory.
        tiled = max(reversed(list(dimensions)), key=lambda extent: dimensions[extent].typical)
        return cls(rows, tiled, dimensions[tiled])

    def sizes(self, most: int) -> list[int]:
        """Return the numbers of rows of its tiles, ascending. The largest tile has ``most`` rows."""
        powers = (size for size in self.dimension.tile_sizes if size <= most)
        return sorted([*powers, *self.dimension.exact_sizes(most)])

    def extents(self, size: int) -> Mapping[Var, int]:
        """Return the extents of a tile of ``size`` rows."""
        return {extent: size if extent.same_as(self.tiled) else 1 for extent in self.rows}


def dimensions_of(kernel: PrimFunc, shapes: Shapes) -> dict[Var, Dimension] | None:
    """Return the dimension of each dynamic extent of a kernel, in order. None if one is no dimension of the network."""
    found = {each: _dimension(str(each.name), shapes) for each in dynamic_extents(kernel)}
    known = {extent: dimension for extent, dimension in found.items() if dimension is not None}
    return known if len(known) == len(found) else None


def _dimension(name: str, shapes: Shapes) -> Dimension | None:
    """Return the dimension of this name. If the name joins the names of several dimensions, return their product. None
    if it is neither."""
    named = {each.name: each for each in shapes.dynamic}
    if name in named:
        return named[name]
    if not all(each in named for each in factors(name)):
        return None
    joined = [named[each] for each in factors(name)]
    least, typical, most = (
        min(prod(sizes), MOST_EXTENT) for sizes in zip(*((d.least, d.typical, d.most) for d in joined), strict=True)
    )
    return Dimension("_".join(factors(name)), least, most, ((typical, 1.0),) if least < most else ())
