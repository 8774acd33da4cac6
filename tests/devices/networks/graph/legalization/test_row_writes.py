"""Rows of inner axes are written without transposes, into a copy of the data and into the data themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from devices.builds.executables import calls, flatten, kernel_calls
from devices.networks.caches.static_caches import overwrite_caches
from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.legalization import scatters
from devices.networks.graph.legalization.operators import LEGALIZED
from devices.networks.graph.legalization.row_writes import write_inner_rows
from tests.helpers.properties import examples

Array = npt.NDArray[Any]
Builder = relax.BlockBuilder
Body = Callable[[Builder, Any, Any, Any], Sequence[Any]]


def module_of(body: Body, *arrays: Array) -> Any:
    """A module of what ``body`` makes of data, indices and updates."""
    builder = Builder()
    types = [relax.TensorType(each.shape, str(each.dtype)) for each in arrays]
    inputs = [relax.Var(name, kind) for name, kind in zip(("data", "indices", "updates"), types, strict=True)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple([builder.emit(each) for each in body(builder, *inputs)]))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def lowered(module: Any) -> Any:
    return relax.transform.LegalizeOps(LEGALIZED)(module)


def run(module: Any, *arrays: Array) -> tuple[list[Array], list[Array]]:
    """The results of a module of kernels, and its arguments afterwards."""
    arguments = [tvm.runtime.tensor(each) for each in arrays]
    results = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())["main"](*arguments)
    return [*flatten(results)], [each.numpy() for each in arguments]


def transposes(module: Any) -> list[tuple[int, ...]]:
    """The axes of each."""
    found = [call for call in calls(module["main"].body) if operator_name(call) == "relax.permute_dims"]
    return [tuple(int(axis) for axis in call.attrs.axes) for call in found]


def rows_at(
    builder: Builder, data: Any, indices: Any, updates: Any, order: Sequence[int], reduction: str = "update"
) -> Any:
    """Rows written between transposes: the last of them, and the value before it."""
    moved = builder.emit(relax.op.permute_dims(data, list(order)))
    written = builder.emit(relax.op.scatter_nd(moved, indices, updates, reduction))
    return relax.op.permute_dims(written, [order.index(axis) for axis in range(len(order))]), written


DATA = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
PLACES = np.array([[2], [0]])
UPDATES = -np.ones((2, 2, 3, 5), np.float32)


def test_transposes_around_written_rows_vanish() -> None:
    def body(builder: Builder, data: Any, indices: Any, updates: Any) -> Sequence[Any]:
        return [rows_at(builder, data, indices, updates, [2, 0, 1, 3])[0]]

    module = write_inner_rows(module_of(body, DATA, PLACES, UPDATES))
    assert transposes(module) == []
    expected = DATA.copy()
    expected[:, :, [2, 0]] = -1
    ([found], _) = run(lowered(module), DATA, PLACES, UPDATES)
    np.testing.assert_array_equal(found, expected)


def test_other_readers_of_written_rows_transpose_once() -> None:
    def body(builder: Builder, data: Any, indices: Any, updates: Any) -> Sequence[Any]:
        back, written = rows_at(builder, data, indices, updates, [2, 0, 1, 3])
        return [back, relax.op.permute_dims(written, [1, 2, 3, 0]), relax.op.negative(written)]

    module = module_of(body, DATA, PLACES, UPDATES)
    changed = write_inner_rows(module)
    assert transposes(changed) == [(2, 0, 1, 3), (0, 1, 3, 2)]
    outputs = [run(lowered(each), DATA, PLACES, UPDATES)[0] for each in (module, changed)]
    for one, other in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_that_stay_transposed_are_left_alone() -> None:
    def body(builder: Builder, data: Any, indices: Any, updates: Any) -> Sequence[Any]:
        return [relax.op.permute_dims(rows_at(builder, data, indices, updates, [2, 0, 1, 3])[1], [1, 2, 3, 0])]

    module = module_of(body, DATA, PLACES, UPDATES)
    assert transposes(write_inner_rows(module)) == transposes(module)


@dataclass(frozen=True)
class Write:
    """Updates at the places that indices name along the first axes of data in their order."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    reduction: str

    def numpy(self, data: Array, updates: Array) -> Array:
        moved = data.transpose(self.order).copy()
        for at, new in zip(self.indices, updates, strict=True):
            place = tuple(each + extent * (each < 0) for each, extent in zip(at, moved.shape, strict=False))
            if all(0 <= each < extent for each, extent in zip(place, moved.shape, strict=False)):
                moved[place] = new + moved[place] * (self.reduction == "add")
        return moved.transpose(np.argsort(self.order))


@st.composite
def writes(draw: st.DrawFn) -> Write:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    named = draw(st.integers(1, len(shape)))
    at = st.tuples(*(st.integers(-shape[axis] - 1, shape[axis]) for axis in order[:named]))
    indices = tuple(draw(st.lists(at, min_size=1, max_size=3)))
    return Write(shape, order, indices, draw(st.sampled_from(["update", "update", "update", "add"])))


@given(write=writes(), in_threads=st.booleans())
@examples(15)
def test_rows_of_any_axes(write: Write, in_threads: bool) -> None:
    def body(builder: Builder, data: Any, indices: Any, updates: Any) -> Sequence[Any]:
        return [rows_at(builder, data, indices, updates, write.order, write.reduction)[0]]

    data = np.arange(prod(write.shape), dtype=np.float32).reshape(write.shape)
    inner = [write.shape[axis] for axis in write.order[len(write.indices[0]) :]]
    updates = -1 - np.arange(prod([len(write.indices), *inner]), dtype=np.float32).reshape(-1, *inner)
    arrays = data, np.array(write.indices), updates
    module = lowered(write_inner_rows(module_of(body, *arrays)))
    before = scatters._MANY
    scatters._MANY = 1 if in_threads else before
    try:
        changed, caches = overwrite_caches(module)
    finally:
        scatters._MANY = before
    expected = write.numpy(data, updates)
    for each in (module, changed):
        ([found], (after, *_)) = run(each, *arrays)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(after, expected if each is changed and caches else data)
    assert len(caches) == (write.reduction == "update")


@given(
    indices=st.lists(st.lists(st.integers(-5, 4), min_size=3, max_size=3), min_size=1, max_size=2),
    axis=st.integers(0, 2),
    in_threads=st.booleans(),
)
@examples(10)
def test_elements_along_any_axis(indices: list[list[int]], axis: int, in_threads: bool) -> None:
    def body(_: Builder, data: Any, indices: Any, updates: Any) -> Sequence[Any]:
        return [relax.op.scatter_elements(data, indices, updates, axis, "update")]

    data = np.zeros((4, 4, 4), np.float32)
    places = np.array([indices, indices])
    updates = 1 + np.arange(places.size, dtype=np.float32).reshape(places.shape)
    expected = data.copy()
    for at in np.ndindex(*places.shape):
        if -4 <= places[at] < 4:
            expected[(*at[:axis], places[at], *at[axis + 1 :])] = updates[at]
    before = scatters._MANY
    scatters._MANY = 1 if in_threads else before
    try:
        changed, caches = overwrite_caches(lowered(module_of(body, data, places, updates)))
    finally:
        scatters._MANY = before
    assert len(caches) == 1
    assert [call.args[0].name_hint for call in kernel_calls(changed["main"])] == ["scatter_elements_overwriting"]
    ([found], (after, *_)) = run(changed, data, places, updates)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(after, expected)
