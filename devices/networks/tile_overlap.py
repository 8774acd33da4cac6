"""How many rows a tile may compute again where smaller tiles would be needed else.

A tile takes about as long as its operations, reading the weights once, and its begin and end on all threads. A tile
that overlaps the one before saves at least one of the smaller tiles, and computes rows again: it pays where these take
no longer than what else a tile takes. A sequence that dynamic programming chooses by the same costs is 0.2% faster in
the mean over 1 to 256 rows.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from devices.networks.task_extraction import flop_of
from devices.networks.tiled_rows import TiledRows
from devices.sketches.dynamic.rows import specialized, tensors

_TILE_FLOP = 5e5
"""Operations in the time that a tile takes to begin and end on all threads, some 2 us."""
_BYTE_FLOP = 1.5
"""Operations in the time in which a byte of the weights is read again, from a cache."""


def tile_overlap(kernel: PrimFunc, rows: TiledRows) -> int:
    """Return the number of rows of a kernel that take as long as a tile does besides its rows: 0 for a convolution
    of images, 3 to 6 for products of a few hundred columns, hundreds for an addition."""
    alone = specialized(kernel, rows.extents(1))
    dynamic = {at for found in rows.rows.values() for at in found}
    weights = sum(_bytes(each) for at, each in enumerate(tensors(kernel)) if at not in dynamic)
    return int((_TILE_FLOP + _BYTE_FLOP * weights) / max(flop_of(alone), 1.0))


def _bytes(tensor: Any) -> int:
    return math.prod(map(int, tensor.ty.shape)) * int(tvm.DataType(str(tensor.ty.dtype)).bits) // 8
