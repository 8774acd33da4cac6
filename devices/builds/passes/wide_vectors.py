"""Splitting of wide vector loops of CPUs into vectors that LLVM keeps in registers.

MetaSchedule fuses the inner loops of a block, up to 64 elements, and vectorises them. LLVM widens a vector of 24 or 48
elements to the next power of two, and splits it for every load and store. If a kernel sums up vectors of 12 elements
and its epilogue reads four of them at once, LLVM joins the sums into one wide vector too, and the kernel takes five to
fifteen times as long (docs/lab/kernels.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import BufferStore, For, PrimFunc
from tvm_ffi import structural_map, structural_walk

from devices.builds.passes.vector_lanes import is_vector_loop, vector_in_parts

_NARROW = 16
"""Elements up to which LLVM widens a vector at little cost."""
_LEAST = 4


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def split_wide_vectors(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass over functions with a target attribute, before vector loops become vectors."""
    target = function.attrs.get("target") if function.attrs else None
    if target is None or target.kind.name != "llvm":
        return function
    written: dict[Any, int] = {}

    def note(loop: For) -> None:
        if is_vector_loop(loop):
            structural_walk(loop.body, [(BufferStore, lambda store: written.setdefault(store.buffer, _lanes(loop)))])

    structural_walk(function.body, [(For, note)])
    return function.with_body(structural_map(function.body, (For, lambda loop: _split(loop, written))))


def _lanes(loop: For) -> int:
    """Return the number of elements of each vector. For a wide loop it is the largest power of two that divides the
    extent, if that is not too small, else the whole extent."""
    extent = int(loop.extent)
    power = extent & -extent
    return power if extent > _NARROW and power >= _LEAST else extent


def _split(loop: For, written: Mapping[Any, int]) -> For:
    """Return a vector loop as a serial loop of narrower vectors; other loops stay unchanged. ``written``: lanes with
    which buffers are written. If this is not a power of two, a loop that reads such a buffer uses vectors no wider."""
    if not is_vector_loop(loop):
        return loop
    extent, read = int(loop.extent), []
    structural_walk(loop.body, [(TensorLoad, lambda load: read.append(written.get(load.source, extent)))])
    # If both widths are powers of two, LLVM extracts parts of a vector for free.
    lanes = min([_lanes(loop), *(each for each in read if extent % each == 0 and each & (each - 1))])
    if lanes == extent:
        return loop
    return vector_in_parts(loop, lanes)
