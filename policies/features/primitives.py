"""The schedule primitives of a candidate, as TLP reads them (Zhai et al., ASPLOS 2023): kinds and numbers in order.

TLP reads the steps of a schedule as a sentence and learns from it alone: nothing is lowered or analysed. Here the steps
are the decisions of a sketch, in its order, a row each. Steps that are the same for all its candidates have no row.
Names and numbers of sketches and rules are left out, because they mean nothing in another task. Only the first
:data:`TOKENS` decisions have a row, and only the outermost :data:`FACTORS` factors of a tile have a number.

==========  ==============================================================================================
column      what
==========  ==============================================================================================
0 to 5      kind, one-hot: tile of a spatial loop, tile of a reduction loop, choice, computed at a loop, at
            the root, inlined; all 0 for a tile whose loop is in no statement
6 + 2 p     number ``p``: log2 of the factors of a tile from the outermost, ``log2(1 + x)`` of a chosen
            value or of the depth of a loop to compute at
7 + 2 p     1: there is a number ``p``
16          log2 of the extent of a tile
==========  ==============================================================================================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import INLINE_LOCATION, ROOT_LOCATION, Choice, Sketch, Tile
from policies.arrays import Features, Floats, Matrix

TOKENS = 16
FACTORS = 5
SPATIAL, REDUCTION, CHOICE, AT_LOOP, AT_ROOT, INLINED = range(6)
_NUMBERS = 6
_EXTENT = _NUMBERS + 2 * FACTORS
COLUMNS = _EXTENT + 1
SHAPE = (TOKENS, COLUMNS)


def primitive_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """The decisions of every candidate in order, ``(n, TOKENS, COLUMNS)``; see the module's docstring. Any sketch."""
    del device  # a schedule is the same on all devices
    features = np.zeros((len(matrix), *SHAPE), dtype=np.float32)
    over_reduction = {
        loop.column: statement.axes[loop.axis].reduction
        for statement in sketch.statements
        for loop in statement.loops
        if loop.column is not None
    }
    for token, (decision, start) in enumerate(zip(sketch.decisions[:TOKENS], sketch.offsets, strict=False)):
        out = features[:, token]
        column = matrix[:, start]
        if isinstance(decision, Tile):
            if start in over_reduction:
                out[:, REDUCTION if over_reduction[start] else SPATIAL] = 1.0
            for part in range(min(decision.parts, FACTORS)):
                _write(out, part, np.log2(matrix[:, start + part]))
            out[:, _EXTENT] = np.log2(decision.extent)
        elif isinstance(decision, Choice):
            out[:, CHOICE] = 1.0
            _write(out, 0, np.log2(1.0 + np.array(decision.values)[column]))
        else:
            place = np.array(decision.locations)[column]
            at_loop = place >= 0
            out[place == ROOT_LOCATION, AT_ROOT] = 1.0
            out[place == INLINE_LOCATION, INLINED] = 1.0
            out[at_loop, AT_LOOP] = 1.0
            _write(out, 0, np.log2(1.0 + np.maximum(place, 0)), at_loop)
    return features


def _write(out: Features, number: int, values: Floats, there: NDArray[np.bool_] | None = None) -> None:
    """Write ``values`` (n,) as number ``number`` of the tokens ``out`` (n, COLUMNS). Rows where ``there`` (n,) is false
    have no such number: it is 0, and so is its flag."""
    column = _NUMBERS + 2 * number
    out[:, column] = values if there is None else values * there
    out[:, column + 1] = 1.0 if there is None else there
