"""CUDA kernels without a GPU: their source is compiled as C++ against headers of ours, and runs block by block.

Each thread of a block is a fiber (``cuda.h``). They run in one order and in the opposite one, since a missing barrier
makes their results differ; memory beside the arrays must stay as it is; shared memory that nobody wrote is NaN.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.tirx import For
from tvm_ffi import structural_walk

from tests.helpers.cuda_on_cpu.nvcc import SourceError, compile_for_cpu

Array = npt.NDArray[Any]
_GUARD_BYTES = 4096


class EmulationError(Exception):
    """A kernel that no GPU could run rightly."""


def extents(body: Any) -> dict[str, int]:
    """The blocks and threads that a scheduled program is bound to, by axis."""
    found: dict[str, int] = {}

    def loop(node: For) -> None:
        if node.thread_binding is not None:
            found[str(node.thread_binding.thread_tag)] = int(node.extent)

    structural_walk(body, [(For, loop)])
    return found


def run_on_cpu(source: str, bound: Mapping[str, int], arrays: Mapping[str, Array], folder: Path) -> None:
    """Run the one kernel of ``source`` over arrays, by the names of its parameters; it writes into them.

    Raises :class:`EmulationError` where its results depend on the order of threads, threads wait for each other at
    different barriers, or it writes outside of its arrays.
    """
    kernel, parameters, library = _compiled(source, folder)
    axes = (f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz")
    launched = (ctypes.c_int * 6)(*(bound.get(axis, 1) for axis in axes))
    results = []
    for backwards in (False, True):
        guarded = {name: _Guarded(arrays[name]) for name in parameters}
        pointers = [guarded[name].inside.ctypes.data_as(ctypes.c_void_p) for name in parameters]
        addresses = (ctypes.c_void_p * len(pointers))(*map(ctypes.addressof, pointers))
        if library[f"run_{kernel}"](addresses, launched, int(backwards)):
            raise EmulationError("its threads wait for each other at different barriers")
        outside = [name for name, each in guarded.items() if not each.is_intact()]
        if outside:
            raise EmulationError(f"it writes outside of {', '.join(outside)}")
        results.append({name: each.inside for name, each in guarded.items()})
    for name in parameters:
        if results[0][name].tobytes() != results[1][name].tobytes():
            raise EmulationError(f"{name} depends on the order of threads")
        arrays[name][...] = results[0][name].reshape(arrays[name].shape)


class _Guarded:
    """A copy of an array with memory around it that nobody may write to."""

    def __init__(self, array: Array) -> None:
        self._whole = np.full(array.nbytes + 2 * _GUARD_BYTES, 0xA5, np.uint8)
        self.inside = self._whole[_GUARD_BYTES : _GUARD_BYTES + array.nbytes]
        self.inside[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.inside = self.inside.view(array.dtype)

    def is_intact(self) -> bool:
        ends = self._whole[:_GUARD_BYTES], self._whole[-_GUARD_BYTES:]
        return all(bool((each == 0xA5).all()) for each in ends)


def _compiled(source: str, folder: Path) -> tuple[str, list[str], ctypes.CDLL]:
    """Return the kernel's name, the names of its parameters in order, and the library."""
    headings = re.findall(r'extern "C" __global__ void[^;{]*\{', source)
    assert len(headings) == 1, f"{len(headings)} kernels"
    parameters = re.findall(r"[\w ]+\*(?: __restrict__)? (\w+?)(?:_ptr)?(?=[,)])", headings[0])
    library = folder / f"{hashlib.blake2b(source.encode(), digest_size=8).hexdigest()}.so"
    try:
        compile_for_cpu(source, library)
    except SourceError as error:
        raise EmulationError(str(error)) from error
    return re.findall(r"(\w+)\(", headings[0])[-1], parameters, ctypes.CDLL(str(library))
