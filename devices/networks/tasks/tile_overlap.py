"""The number of rows that a tile may compute again instead of using smaller tiles.

A tile takes about the time of its operations, plus that of reading the weights once. A tile that overlaps the tile
before saves at least one smaller tile, but computes rows again. This pays if their operations take no longer than
reading the weights. Tiles that dynamic programming chooses with the same costs are only 0.2% faster, averaged over 1 to
256 rows.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from devices.networks.tasks.operations import flop_of
from devices.networks.tasks.tiled_rows import TiledRows
from devices.sketches.dynamic.rows import specialized, tensors

_BYTE_FLOP = 2
"""Operations in the time of reading a byte of the weights again, from a cache."""


def tile_overlap(kernel: PrimFunc, rows: TiledRows) -> int:
    """Return the number of rows of a kernel whose operations take as long as reading its weights: 4 for a product with
    a matrix of float32, 0 for a convolution of images and a kernel without weights."""
    alone = specialized(kernel, rows.extents(1))
    dynamic = {at for found in rows.rows.values() for at in found}
    weights = sum(_bytes(each) for at, each in enumerate(tensors(kernel)) if at not in dynamic)
    return int(_BYTE_FLOP * weights / max(flop_of(alone), 1.0))


def _bytes(tensor: Any) -> int:
    return math.prod(map(int, tensor.ty.shape)) * int(tvm.DataType(str(tensor.ty.dtype)).bits) // 8
