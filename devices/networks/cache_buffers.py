"""The buffers of a network's growing caches while it runs.

A network returns a cache as the first rows of a buffer of the largest extent. Where it is given that array or tensor
again, its rows are in the buffer already, and the new ones are written behind them. They are written there once: who
goes on from one cache twice gets a new buffer the second time, to which everything is copied, as who gives a cache of
another origin does.

Importing this module loads neither torch nor TVM.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from devices.timing.arguments import numpy_dtype

Array = npt.NDArray[Any]

_ALIGNMENT_BYTES = 64
"""Alignment that kernels are compiled for."""


@dataclass(frozen=True)
class GrowingCache:
    """An input that the network returns with more rows behind its own."""

    input: int
    """Its place among the inputs."""
    output: int
    """Its place among the outputs."""
    axis: int
    """The axis of the rows."""
    most: int
    """Largest number of rows of the output."""
    added: int | str
    """Number of rows that it grows by, or the name of the dynamic dimension whose extent that is."""

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
        """Return the rows of the output for an input of this shape. ``extents``: of the dynamic dimensions."""
        return shape[self.axis] + (extents[self.added] if isinstance(self.added, str) else self.added)

    def steps_left(self, shape: Sequence[int], extents: Mapping[str, int]) -> int:
        """Return how often an input of this shape can grow."""
        rows = shape[self.axis]
        return (self.most - rows) // max(1, self.rows_after(shape, extents) - rows)

    def rows(self, buffer: Any, count: int) -> Any:
        """Return the first rows of a buffer, an array or a tensor, in its memory."""
        return buffer[(*(slice(None),) * self.axis, slice(count))]


@dataclass(frozen=True)
class Step:
    """The arguments of a run that grows caches, and what it returns of them."""

    kept: Mapping[int, Array]
    """What is given for inputs whose rows are in the buffer already, by their places: arrays of the right shape, which
    the network does not read."""
    buffers: tuple[Array, ...]
    """The buffer of each cache."""
    first_rows: tuple[int, ...]
    """The row of each buffer from which on it has to be written."""
    grown: Mapping[int, Array]
    """The grown caches, in the buffers, by their places among the outputs."""

    @property
    def arguments(self) -> tuple[Array, ...]:
        """The arguments of ``main`` behind its inputs. None without caches."""
        return (*self.buffers, np.array(self.first_rows, np.int64)) if self.buffers else ()


NO_STEP = Step({}, (), (), {})
"""That of a network without growing caches."""


@dataclass
class _Filled:
    """A buffer that a cache was returned in."""

    owner: weakref.ref[Array]
    """The memory, which lives as long as an array or tensor that shares it."""
    shape: tuple[int, ...]
    rows: int
    """Rows that were written."""


class CacheBuffers:
    """The buffers of the caches of one network. Not safe for several threads.

    Args:
        caches: the caches.
    """

    def __init__(self, caches: Sequence[GrowingCache]) -> None:
        self._caches = tuple(caches)
        self._filled: dict[int, _Filled] = {}

    def step(self, inputs: Sequence[Any], extents: Mapping[str, int]) -> Step:
        """Return the buffers for a run. ``inputs``: arrays or tensors that the network takes."""
        kept: dict[int, Array] = {}
        buffers, first_rows, grown = [], [], {}
        for cache in self._caches:
            value = inputs[cache.input]
            shape = tuple(value.shape)
            rows, after = shape[cache.axis], cache.rows_after(shape, extents)
            buffer = self._buffer_of(value, cache)
            if buffer is None:
                buffer = _aligned(cache.buffer_shape(shape), _dtype_of(value))
                first_rows.append(0)
            else:
                kept[cache.input] = buffer.reshape(-1)[: prod(shape)].reshape(shape)
                first_rows.append(rows)
            self._note(buffer, after)
            buffers.append(buffer)
            grown[cache.output] = cache.rows(buffer, after)
        return Step(kept, tuple(buffers), tuple(first_rows), grown)

    def placed(self, cache: GrowingCache, rows: Array) -> Array:
        """Return a copy of a cache in a buffer, in which it grows."""
        buffer = _aligned(cache.buffer_shape(rows.shape), rows.dtype)
        count = rows.shape[cache.axis]
        placed: Array = cache.rows(buffer, count)
        placed[...] = rows
        self._note(buffer, count)
        return placed

    def _buffer_of(self, value: Any, cache: GrowingCache) -> Array | None:
        """Return the buffer whose last rows are those of ``value``; None where there is none."""
        address, strides = _place_of(value)
        found = self._filled.get(address)
        memory = None if found is None else found.owner()
        if found is None or memory is None:
            return None
        shape = tuple(value.shape)
        if found.shape != cache.buffer_shape(shape) or found.rows != shape[cache.axis]:
            return None
        buffer = _view(memory, found.shape, _dtype_of(value))
        return buffer if buffer.strides == strides else None

    def _note(self, buffer: Array, rows: int) -> None:
        address = buffer.__array_interface__["data"][0]
        memory: Any = buffer.base

        def forget(gone: weakref.ref[Array]) -> None:
            # The memory may be that of another buffer by now.
            if (there := self._filled.get(address)) is not None and there.owner is gone:
                del self._filled[address]

        self._filled[address] = _Filled(weakref.ref(memory, forget), buffer.shape, rows)


def filled(caches: Sequence[GrowingCache], inputs: Sequence[Array]) -> list[Array]:
    """Return the arguments of ``main`` behind its inputs with the rows of ``inputs`` in the buffers: a run writes the
    new rows alone, each time."""
    found = []
    for cache in caches:
        given = inputs[cache.input]
        buffer = _aligned(cache.buffer_shape(given.shape), given.dtype)
        cache.rows(buffer, given.shape[cache.axis])[...] = given
        found.append(buffer)
    return [*found, np.array([inputs[cache.input].shape[cache.axis] for cache in caches], "int64")] if found else []


def without_spare_rows(
    caches: Sequence[GrowingCache], inputs: Sequence[Array], outputs: Sequence[Array], extents: Mapping[str, int]
) -> tuple[Array, ...]:
    """Return the outputs of ``main`` with the rows that each cache has for these inputs."""
    found = list(outputs)
    for cache in caches:
        found[cache.output] = cache.rows(outputs[cache.output], cache.rows_after(inputs[cache.input].shape, extents))
    return tuple(found)


def _aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    memory = np.empty(prod(shape) * np.dtype(dtype).itemsize + _ALIGNMENT_BYTES, np.uint8)
    return _view(memory, shape, dtype)


def _view(memory: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return the array of this shape that begins at the first aligned byte."""
    first = -memory.__array_interface__["data"][0] % _ALIGNMENT_BYTES
    found: Array = memory[first : first + prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    return found


def _place_of(value: Any) -> tuple[int, tuple[int, ...]]:
    """Return the address of an array or a tensor, and its strides in bytes."""
    if isinstance(value, np.ndarray):
        return value.__array_interface__["data"][0], value.strides
    return value.data_ptr(), tuple(each * value.element_size() for each in value.stride())


def _dtype_of(value: Any) -> Any:
    """Return numpy's type of the elements of an array or a tensor."""
    if isinstance(value, np.ndarray):
        return value.dtype
    return numpy_dtype(str(value.dtype).removeprefix("torch."))
