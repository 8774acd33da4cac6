"""The buffers of a network's growing caches while it runs.

A network returns a cache as the first rows of a buffer of the largest extent. If the caller passes that array or tensor
again, its rows are in the buffer already, and the new rows are written after them. This happens once: if the caller
continues from one cache twice, the second time everything is copied to a new buffer. A cache that does not come from a
buffer is copied too.

Importing this module does not load torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from devices.builds.tensors import array_of
from devices.networks.input_shapes import name_of
from devices.networks.torch import arrays as torch_arrays
from devices.timing.arguments import numpy_dtype

Array = npt.NDArray[Any]

_PLAIN = {"bfloat16": "uint16"}
"""Types in which numpy cannot read TVM's tensors, each with a type of the same size that it can read."""


@dataclass(frozen=True)
class GrowingCache:
    """An input that the network returns with more rows after its own."""

    input: int
    """Its index among the inputs."""
    output: int
    """Its index among the outputs."""
    axis: int
    """The axis of the rows."""
    most: int
    """Largest number of rows of the output."""
    added: int | str
    """Number of rows that it grows by, or the name of the dynamic dimension whose extent is this number."""

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> tuple[GrowingCache, ...]:
        """Return the caches in the manifest of a network."""
        return tuple(cls(**entry) for entry in manifest.get("caches", ()))

    @property
    def entry(self) -> dict[str, int | str]:
        """Its fields, for the manifest."""
        return asdict(self)

    def buffer_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the buffer for a cache of this shape."""
        return (*shape[: self.axis], self.most, *shape[self.axis + 1 :])

    def rows_after(self, shape: Sequence[int], extents: Mapping[str, int]) -> int:
        """Return the rows of the output for an input of this shape. ``extents``: the extents of the dynamic
        dimensions."""
        return shape[self.axis] + (extents[self.added] if isinstance(self.added, str) else self.added)

    def rows(self, buffer: Any, count: int) -> Any:
        """Return the first rows of a buffer, an array or a tensor, in its memory."""
        return buffer[(*(slice(None),) * self.axis, slice(count))]


@dataclass
class _Buffer:
    """Memory of a cache. It lives as long as an array or tensor that shares it, other than ``tensor``."""

    memory: weakref.ref[Array]
    """All of the memory, in a type that numpy and TVM both have."""
    dtype: str
    """Type of the cache."""
    tensor: Any
    """TVM's tensor of all of the memory."""
    rows: int = 0
    """Rows that were written."""
    view: weakref.ref[Any] | None = None
    """The array or tensor of these rows that the network has returned last."""
    view_id: int = 0
    """``id`` of the view."""

    def array(self) -> Array | None:
        """Return all of the memory. None if nothing shares it any more."""
        memory = self.memory()
        return memory if memory is None or self.dtype not in _PLAIN else memory.view(numpy_dtype(self.dtype))


@dataclass(frozen=True)
class CacheStep:
    """The arguments of a run that grows caches."""

    kept: Mapping[int, Any]
    """Placeholders for the inputs whose rows are in the buffer already, by input index: TVM's tensors of the right
    shape, which the network does not read."""
    arguments: tuple[Any, ...]
    """The arguments of ``main`` after its inputs: the buffers, and for each the first row to write."""
    grown: Mapping[int, tuple[_Buffer, Array]]
    """The grown caches by output index: the buffer, and its rows."""


NO_STEP = CacheStep({}, (), {})
"""The step of a network without growing caches."""


class CacheBuffers:
    """The buffers of the caches of one network. Not safe for several threads.

    Args:
        caches: the caches.
    """

    def __init__(self, caches: Sequence[GrowingCache]) -> None:
        self._caches = tuple(caches)
        self._by_address: dict[int, _Buffer] = {}
        # The same by the ``id`` of the last view, which takes less time to read than an address.
        self._by_view: dict[int, _Buffer] = {}
        self._first_rows = tvm.runtime.empty((len(caches),), "int64") if caches else None
        self._first_row_numbers = array_of(self._first_rows) if caches else np.zeros(0, np.int64)

    def step(self, inputs: Sequence[Any], extents: Mapping[str, int]) -> CacheStep:
        """Return the arguments for a run on ``inputs``, arrays or tensors that the network accepts. They hold for one
        run: the next step changes them."""
        kept: dict[int, Any] = {}
        alike: dict[Any, Any] = {}
        tensors: list[Any] = []
        grown: dict[int, tuple[_Buffer, Array]] = {}
        for at, cache in enumerate(self._caches):
            value = inputs[cache.input]
            shape = tuple(value.shape)
            buffer = self._buffer_of(value, cache)
            array = None if buffer is None else buffer.array()
            if buffer is None or array is None:
                buffer, array = self._new(cache.buffer_shape(shape), name_of(value.dtype))
                self._first_row_numbers[at] = 0
            else:
                # The network reads only its shape: one tensor serves all caches of this shape.
                key = shape, buffer.dtype
                if key not in alike:
                    alike[key] = buffer.tensor._create_view(shape, buffer.dtype, 0)
                kept[cache.input] = alike[key]
                self._first_row_numbers[at] = shape[cache.axis]
            buffer.rows = cache.rows_after(shape, extents)
            tensors.append(buffer.tensor)
            grown[cache.output] = buffer, cache.rows(array, buffer.rows)
        return CacheStep(kept, (*tensors, self._first_rows), grown)

    def returned(self, step: CacheStep, output: int, as_torch: bool) -> Any:
        """Return a grown cache of a step as an array or a torch tensor in its buffer."""
        buffer, rows = step.grown[output]
        return self._as_view(buffer, rows, as_torch)

    def placed(self, cache: GrowingCache, rows: Array, as_torch: bool) -> Any:
        """Copy a cache to a buffer in which it can grow, and return it as an array or a torch tensor."""
        buffer, array = self._new(cache.buffer_shape(rows.shape), str(rows.dtype))
        buffer.rows = rows.shape[cache.axis]
        view: Array = cache.rows(array, buffer.rows)
        view[...] = rows
        return self._as_view(buffer, view, as_torch)

    def __len__(self) -> int:
        """The number of buffers that are in use."""
        return len(self._by_address)

    def _buffer_of(self, value: Any, cache: GrowingCache) -> _Buffer | None:
        """Return the buffer whose written rows are those of ``value``. None if there is none."""
        buffer = self._by_view.get(id(value))
        if buffer is None or buffer.view is None or buffer.view() is not value:
            buffer = self._by_address.get(_address(value))
        array = None if buffer is None else buffer.array()
        if buffer is None or array is None:
            return None
        shape = tuple(value.shape)
        is_last = buffer.rows == shape[cache.axis] and array.shape == cache.buffer_shape(shape)
        is_last = is_last and buffer.dtype == name_of(value.dtype)
        return buffer if is_last and _strides(value) == array.strides else None

    def _as_view(self, buffer: _Buffer, rows: Array, as_torch: bool) -> Any:
        self._forget_view(buffer)
        view = torch_arrays.tensor_of(rows) if as_torch else rows
        buffer.view, buffer.view_id = weakref.ref(view), id(view)
        self._by_view[id(view)] = buffer
        return view

    def _forget_view(self, buffer: _Buffer) -> None:
        # The view may be gone, and its ``id`` may belong to another buffer's view by now.
        if self._by_view.get(buffer.view_id) is buffer:
            del self._by_view[buffer.view_id]

    def _new(self, shape: tuple[int, ...], dtype: str) -> tuple[_Buffer, Array]:
        """Return an empty buffer, and the array of all its memory."""
        plain = _PLAIN.get(dtype, dtype)
        tensor = tvm.runtime.empty(shape, plain)
        memory = array_of(tensor)
        address = _address(memory)

        def forget(gone: weakref.ref[Array]) -> None:
            # Another buffer may have this memory by now.
            if (there := self._by_address.get(address)) is not None and there.memory is gone:
                del self._by_address[address]
                self._forget_view(there)

        given = tensor if plain == dtype else tensor._create_view(shape, dtype, 0)
        buffer = self._by_address[address] = _Buffer(weakref.ref(memory, forget), dtype, given)
        array = buffer.array()
        assert array is not None, "the memory is held here"
        return buffer, array


def filled(caches: Sequence[GrowingCache], inputs: Sequence[Array]) -> list[Array]:
    """Return the arguments of ``main`` after its inputs, with the rows of ``inputs`` in the buffers: each run writes
    only the new rows."""
    found = []
    for cache in caches:
        given = inputs[cache.input]
        buffer = np.empty(cache.buffer_shape(given.shape), given.dtype)
        cache.rows(buffer, given.shape[cache.axis])[...] = given
        found.append(buffer)
    return [*found, np.array([inputs[cache.input].shape[cache.axis] for cache in caches], "int64")] if found else []


def without_spare_rows(
    caches: Sequence[GrowingCache], inputs: Sequence[Array], outputs: Sequence[Array], extents: Mapping[str, int]
) -> tuple[Array, ...]:
    """Return the outputs of ``main``, with each cache cut to the rows that it has for these inputs."""
    found = list(outputs)
    for cache in caches:
        found[cache.output] = cache.rows(outputs[cache.output], cache.rows_after(inputs[cache.input].shape, extents))
    return tuple(found)


def _address(value: Any) -> int:
    return int(value.__array_interface__["data"][0]) if isinstance(value, np.ndarray) else int(value.data_ptr())


def _strides(value: Any) -> tuple[int, ...]:
    """Return the strides of an array or a tensor in bytes."""
    if isinstance(value, np.ndarray):
        return value.strides
    size = value.element_size()
    return tuple(each * size for each in value.stride())
