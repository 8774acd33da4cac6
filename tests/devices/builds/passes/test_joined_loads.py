"""Neighbouring narrow numbers are loaded at once, and only neighbours are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import te, tirx

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.networks.graph.low_precision.byte_kernels import packing
from devices.networks.graph.low_precision.half_products import _PAIRS
from devices.sketches.byte_operators import DOT4, INT16_DOT2, SIGNED_DOT4, IntegerDot
from devices.targets import NATIVE, parse_target, resolve_target

ROWS, COLUMNS = 16, 64
Group = Callable[[Any, Any, Any], Any]


def kernel(group: Group, dtype: str, count: int, vector: str | None) -> tvm.IRModule:
    """A kernel of ``group(data, row, at)`` for ``count`` places of each row, with vectors along one of the axes."""
    data = te.placeholder((ROWS, COLUMNS), dtype, name="data")
    out = te.compute((ROWS, count), lambda i, j: group(data, (i,), j), name="out")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, out])}))
    row, column = schedule.get_loops(schedule.get_sblock("out"))
    if vector == "rows":
        schedule.reorder(column, row)
        schedule.vectorize(row)
    elif vector == "columns":
        schedule.vectorize(column)
    return schedule.mod


def built(module: tvm.IRModule) -> Any:
    use_kernel_passes()
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        return tvm.tirx.build(module, target=parse_target(resolve_target(NATIVE)))


def result(module: tvm.IRModule, data: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    out = tvm.runtime.tensor(np.zeros((ROWS, count), np.int32))
    tvm.runtime.Executable(built(module)).jit()["main"](tvm.runtime.tensor(data), out)
    return out.numpy()


def random_bytes() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (ROWS, COLUMNS), np.uint8)


@pytest.mark.parametrize("vector", [None, "rows", "columns"])
@pytest.mark.parametrize("dot", [DOT4, SIGNED_DOT4, INT16_DOT2], ids=lambda dot: dot.name.rsplit(".", 1)[-1])
def test_bytes_in_one_number_are_those_of_memory(dot: IntegerDot, vector: str | None) -> None:
    data, count = random_bytes(), COLUMNS // dot.terms
    found = result(kernel(packing(0, dot).group, "uint8", count, vector), data, count)
    held = data.astype(f"<u{4 // dot.terms}") + np.array(dot.least, np.int64).astype(f"<u{4 // dot.terms}")
    np.testing.assert_array_equal(found, held.astype(f"<u{4 // dot.terms}").view("<i4"))


@pytest.mark.parametrize("vector", [None, "rows", "columns"])
def test_pairs_of_bfloat16_are_those_of_memory(vector: str | None) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 16, (ROWS, COLUMNS), np.uint16)
    found = result(kernel(_PAIRS.group, "bfloat16", COLUMNS // 2, vector), bits.view(ml_dtypes.bfloat16), COLUMNS // 2)
    np.testing.assert_array_equal(found, bits.view("<i4"))


@pytest.mark.parametrize("dot", [DOT4, INT16_DOT2], ids=lambda dot: dot.name.rsplit(".", 1)[-1])
def test_no_byte_is_loaded_by_itself(dot: IntegerDot) -> None:
    source = built(kernel(packing(0, dot).group, "uint8", COLUMNS // dot.terms, "columns")).inspect_source("ll")
    assert not re.search(r"load i8\b|insertelement|masked\.gather", source)


def shifted(data: Any, row: Any, places: list[Any]) -> Any:
    number = tirx.const(0, "int32")
    for at, place in enumerate(places):
        number = number ^ (data[(*row, place)].astype("int32") << tirx.const(8 * at, "int32"))
    return number


@pytest.mark.parametrize("vector", [None, "rows", "columns"])
@pytest.mark.parametrize(
    "places", [[3, 2, 1, 0], [0, 2, 4, 6], [0, 1, 2, 4], [1, 1, 1, 1]], ids=lambda places: "".join(map(str, places))
)
def test_other_bytes_keep_their_places(places: list[int], vector: str | None) -> None:
    data, count = random_bytes(), COLUMNS // 8
    module = kernel(
        lambda each, row, j: shifted(each, row, [8 * j + place for place in places]), "uint8", count, vector
    )
    expected = sum(data[:, place::8].astype(np.int64) << 8 * at for at, place in enumerate(places))
    np.testing.assert_array_equal(result(module, data, count), np.asarray(expected).astype(np.uint32).view(np.int32))


@pytest.mark.parametrize("vector", [None, "rows", "columns"])
def test_neighbours_at_any_distance_from_the_next_number(vector: str | None) -> None:
    """Numbers of four bytes, each three behind the one before."""
    data, count = random_bytes(), 20
    module = kernel(lambda each, row, j: shifted(each, row, [3 * j + at for at in range(4)]), "uint8", count, vector)
    expected = np.stack([data[:, 3 * j : 3 * j + 4].copy().view("<i4")[:, 0] for j in range(count)], axis=1)
    np.testing.assert_array_equal(result(module, data, count), expected)
