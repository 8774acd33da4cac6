"""How many rows a tile may compute again."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import te, topi
from tvm.tirx import Var

from devices.networks.tasks.tile_overlap import tile_overlap
from devices.networks.tasks.tiled_rows import TiledRows
from fleet_tune.base.shapes.shapes import parse_shapes


def product(n: Any, results: int, dtype: str = "float32") -> list[te.Tensor]:
    x, w = te.placeholder((n, 256), dtype, "x"), te.placeholder((256, results), dtype, "w")
    return [x, w, topi.matmul(x, w)]


def of_images(n: Any) -> list[te.Tensor]:
    x, w = te.placeholder((n, 14, 14, 256), name="x"), te.placeholder((3, 3, 256, 256), name="w")
    return [x, w, topi.nn.conv2d_nhwc(x, w, 1, 1, 1)]


def shifted(n: Any) -> list[te.Tensor]:
    x, bias = te.placeholder((n, 256), name="x"), te.placeholder((256,), name="bias")
    return [x, bias, topi.add(x, bias)]


N = Var("n", "int64")


@pytest.mark.parametrize(
    ("tensors", "rows"),
    [
        (product(N, 256), 4),  # 2 * 262,144 bytes / 131,072 operations
        (product(N, 256, "float16"), 2),
        (product(N, 1024), 4),
        (of_images(N), 0),  # 231 million operations an image
        (shifted(N), 8),  # 2 * 1,024 / 256
        ([x := te.placeholder((N, 4), name="x"), te.compute((N, 4), lambda i, j: x[i, 3 - j])], 0),
    ],
)
def test_rows_that_cost_as_much_as_the_weights_may_be_computed_again(tensors: list[te.Tensor], rows: int) -> None:
    kernel = te.create_prim_func(tensors)
    found = TiledRows.of(kernel, parse_shapes("n=1..64"))
    assert found is not None
    assert tile_overlap(kernel, found) == rows
