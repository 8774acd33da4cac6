"""Transfer of decisions between programs of different shapes: the same sketch, adapted decisions.

Sketches of two workloads match if their instructions are equal, apart from everything that shapes, targets and names
decide. Then the decision vectors have the same layout. A tile keeps the factors of its inner loops as far as the new
extent allows, and the outermost factor takes the rest. The data of an inner loop have to fit into the same registers
and caches, and to fill whole vectors: for 48 channels and vectors of 16, a factor of 32 becomes 16 or 48, not 24,
although 24 is nearer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

import numpy as np

from fleet_tune.base.sketch import Sketch, Tile
from policies.space.sampling import TABLE_LIMIT, options, tile_count, tile_table

# Instruction that begins the post-processing, which every program gets after its decisions. It is no part of a sketch.
_END = "EnterPostproc"
_BY_TARGET = ("Annotate", "SamplePerfectTile")
GROWTH = 2.0


def outline(trace: str) -> str:
    """Return a trace without decisions, extents, names of blocks and everything that its target decides. It is equal
    for the same sketch of two shapes. Raise ValueError if it is not a trace of TVM's."""
    try:
        parsed = json.loads(trace)
        if not isinstance(parsed, list):
            raise TypeError("it is no list")
        # A whole trace has instructions and decisions; the trace of a sketch is the instructions alone.
        steps = parsed[0] if parsed and parsed[0] and isinstance(parsed[0][0], list) else parsed
        outlined = []
        for kind, inputs, attributes, outputs in steps:
            if kind == _END:
                break
            named = [each for each in inputs if isinstance(each, str)]
            kept = attributes[:1] if kind in _BY_TARGET else [] if kind == "GetSBlock" else attributes
            outlined.append([kind, named, kept, outputs])
    except (TypeError, ValueError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"no trace: {error}") from error
    return json.dumps(outlined)


def adapted(decisions: Sequence[int], sketch: Sketch, lanes: int) -> tuple[int, ...] | None:
    """Adapt a decision vector of a sketch of the same outline to this ``sketch``, with the nearest tiles. ``lanes``:
    values of a vector of the device. None if a choice has no equal here, or a tile has no factorisation or too many to
    search."""
    if len(decisions) != sketch.width:
        return None
    found: list[int] = []
    for decision, start in zip(sketch.decisions, sketch.offsets, strict=True):
        part = decisions[start : start + decision.width]
        if isinstance(decision, Tile):
            tile = nearest_tile(part, decision, lanes)
            if tile is None:
                return None
            found += tile
        elif 0 <= part[0] < options(decision):
            found.append(part[0])
        else:
            return None
    return tuple(found)


def nearest_tile(factors: Sequence[int], tile: Tile, lanes: int) -> tuple[int, ...] | None:
    """The factorisation of the tile's extent whose inner factors are nearest to ``factors``, by the sum of the
    differences of their logarithms. None if there are none, or more than :data:`TABLE_LIMIT`.

    A factor that grows counts :data:`GROWTH` times, because its data may not fit any more. An innermost factor that was
    a multiple of ``lanes`` stays one if possible. Of two factorisations at the same distance the one with the larger
    inner factors is taken.
    """
    if min(factors, default=0) < 1:
        return None
    if math.prod(factors) == tile.extent and factors[-1] <= tile.innermost_limit:
        return tuple(factors)
    if not 0 < tile_count(tile.extent, tile.parts, tile.innermost_limit) <= TABLE_LIMIT:
        return None
    table = tile_table(tile.extent, tile.parts, tile.innermost_limit)
    whole = table[:, -1] % lanes == 0
    if factors[-1] % lanes == 0 and whole.any():
        table = table[whole]
    grown = np.log(table[:, 1:]) - np.log(np.asarray(factors[1:], dtype=np.float64))
    distance = np.where(grown > 0, GROWTH * grown, -grown).sum(axis=1)
    near = np.flatnonzero(distance <= distance.min() + 1e-9)
    row = table[near[np.argmin(table[near, 0])]]
    return tuple(row.tolist())


def seeds(
    found: Iterable[tuple[str, str, Sequence[int]]], sketches: Sequence[Sketch], lanes: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Adapt candidates that were found elsewhere (a sketch's id, a trace and its decision vector) to these
    ``sketches``. Return the position of the sketch and the decisions of each: in the same order, each once, without
    those that fit no sketch here. A sketch of the same id is preferred to those of the same outline. ``lanes``: see
    :func:`adapted`."""
    by_id = {sketch.id: position for position, sketch in enumerate(sketches)}
    by_outline: dict[str, list[int]] = {}
    for position, sketch in enumerate(sketches):
        name = _outline_or_none(sketch.trace_text)
        if name is not None:
            by_outline.setdefault(name, []).append(position)
    made: dict[tuple[int, tuple[int, ...]], None] = {}
    for sketch_id, trace, decisions in found:
        same = by_id.get(sketch_id)
        positions = by_outline.get(_outline_or_none(trace) or "", ()) if same is None else (same,)
        for position in positions:
            candidate = adapted(decisions, sketches[position], lanes)
            if candidate is not None:
                made[position, candidate] = None
    return list(made)


def _outline_or_none(trace: str) -> str | None:
    try:
        return outline(trace)
    except ValueError:
        return None
