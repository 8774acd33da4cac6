"""CUDA kernels without a GPU: their source is compiled as C++ against headers of ours, and runs block by block.

Each thread of a block is a fiber (``cuda.h``). They run in one order and in the opposite one, since a missing barrier
makes their results differ; memory beside the arrays must stay as it is; shared memory that nobody wrote is NaN.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import re
from _ctypes import dlclose
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import DataType
from tvm.tirx import For, SeqStmt
from tvm_ffi import structural_walk

from tests.helpers.cuda_on_cpu.nvcc import SourceError, compile_for_cpu

Array = npt.NDArray[Any]
_GUARD_BYTES = 4096


class EmulationError(Exception):
    """A kernel that no GPU could run rightly."""


def extents(body: Any) -> dict[str, int]:
    """The blocks and threads that a scheduled program of one kernel is bound to, by axis."""
    found: dict[str, int] = {}

    def loop(node: For) -> None:
        if node.thread_binding is not None:
            found[str(node.thread_binding.thread_tag)] = int(node.extent)

    structural_walk(body, [(For, loop)])
    return found


def launches(body: Any) -> list[dict[str, int]]:
    """The same of each kernel of a scheduled program, in order."""
    whole = body.block.body
    return [extents(each) for each in (whole.seq if isinstance(whole, SeqStmt) else [whole])]


def workspace_bytes(body: Any) -> int:
    """Bytes of the largest buffer that a scheduled program allocates for its kernels to hand on."""
    shapes = [(each.shape, each.dtype) for each in body.block.alloc_buffers if each.scope() == "global"]
    return max((math.prod(map(int, shape)) * DataType(dtype).itemsize for shape, dtype in shapes), default=0)


def run_on_cpu(source: str, bound: Mapping[str, int], arrays: Mapping[str, Array], folder: Path) -> None:
    """Compile and run the one kernel of ``source``; see :class:`CpuProgram`."""
    with closing(CpuProgram(source, folder)) as program:
        program.run([bound], arrays)


class CpuProgram:
    """The kernels of some CUDA source, compiled for this CPU, until it is closed.

    Raises :class:`EmulationError` for source that cannot be compiled.
    """

    def __init__(self, source: str, folder: Path) -> None:
        headings = re.findall(r'extern "C" __global__ void[^;{]*\{', source)
        kernels = {re.findall(r"(\w+)\(", heading)[-1]: _parameters(heading) for heading in headings}
        self._file = folder / f"{hashlib.blake2b(source.encode(), digest_size=8).hexdigest()}.so"
        try:
            compile_for_cpu(source, self._file)
        except SourceError as error:
            raise EmulationError(str(error)) from error
        self._library = ctypes.CDLL(str(self._file))
        # TVM numbers them in the order of their launches.
        self._kernels = [(self._library[f"run_{name}"], kernels[name]) for name in sorted(kernels, key=_number)]

    @property
    def kernels(self) -> int:
        """Number of its kernels."""
        return len(self._kernels)

    def run(self, bound: Sequence[Mapping[str, int]], arrays: Mapping[str, Array], spare_bytes: int = 0) -> None:
        """Run the kernels one after the other over arrays, by the names of their parameters; they write into them.

        ``bound``: see :func:`launches`. ``spare_bytes``: of each array that is none of ``arrays``, by which they hand
        on values; it is full of NaN at first.

        Raises :class:`EmulationError` where results depend on the order of threads, threads wait for each other at
        different barriers, or something is written outside of the arrays.
        """
        names = list(dict.fromkeys(name for _, parameters in self._kernels for name in parameters))
        spare = np.full(spare_bytes, 0xFF, np.uint8)
        results = []
        for backwards in (False, True):
            guarded = {name: _Guarded(arrays.get(name, spare)) for name in names}
            for (run, parameters), launched in zip(self._kernels, bound, strict=True):
                _launch(run, [guarded[name].inside for name in parameters], launched, backwards)
            outside = [name for name, each in guarded.items() if not each.is_intact()]
            if outside:
                raise EmulationError(f"it writes outside of {', '.join(outside)}")
            results.append({name: each.inside for name, each in guarded.items()})
        for name in names:
            if results[0][name].tobytes() != results[1][name].tobytes():
                raise EmulationError(f"{name} depends on the order of threads")
            if name in arrays:
                arrays[name][...] = results[0][name].reshape(arrays[name].shape)

    def close(self) -> None:
        """Unload it, which frees the memory of its blocks, and remove its files."""
        dlclose(self._library._handle)
        for suffix in (".so", ".cc"):
            self._file.with_suffix(suffix).unlink(missing_ok=True)


def _launch(run: Any, arguments: Sequence[Array], bound: Mapping[str, int], backwards: bool) -> None:
    axes = (f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz")
    launched = (ctypes.c_int * 6)(*(bound.get(axis, 1) for axis in axes))
    pointers = [each.ctypes.data_as(ctypes.c_void_p) for each in arguments]
    addresses = (ctypes.c_void_p * len(pointers))(*map(ctypes.addressof, pointers))
    if run(addresses, launched, int(backwards)):
        raise EmulationError("its threads wait for each other at different barriers")


def _parameters(heading: str) -> list[str]:
    return re.findall(r"[\w ]+\*(?: __restrict__)? (\w+?)(?:_ptr)?(?=[,)])", heading)


def _number(kernel: str) -> int:
    """Return 0 for ``main_kernel``, 1 for ``main_kernel_1``."""
    last = kernel.rpartition("_")[2]
    return int(last) if last.isdecimal() else 0


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
