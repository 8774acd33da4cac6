"""Products of pairs of bfloat16 as kernels."""

from __future__ import annotations

import tvm
from tvm import te

from devices.sketches.half_operators import dot2, pair
from tests.helpers.integer_dots import vectorised

ROWS = 8


def scheduled(length: int, columns: int, lanes: int) -> tvm.IRModule:
    """Sums of ``(ROWS, length)`` by ``(length / 2, columns)``, vectorised over so many columns at once."""
    a, b = te.placeholder((ROWS, length), "bfloat16", "a"), te.placeholder((length // 2, columns), "int32", "b")
    k = te.reduce_axis((0, length // 2), "k")
    c = te.compute((ROWS, columns), lambda i, j: te.sum(dot2(pair(a[i, 2 * k], a[i, 2 * k + 1]), b[k, j]), axis=k), "c")
    return vectorised(a, b, c, lanes)
