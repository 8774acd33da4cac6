"""CUDA kernels without a GPU: their source is compiled as C++ against headers of ours, and runs block by block.

Each thread of a block is a fiber (``cuda.h``). They run in one order and in the opposite one, since a missing barrier
makes their results differ; memory beside the arrays must stay as it is; shared memory that nobody wrote is NaN.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.tirx import For
from tvm_ffi import structural_walk

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
_GUARD_BYTES = 4096
_DYNAMIC_BYTES = 232_448  # of shared memory, at most, in the largest GPU


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
    parameters, library = _compiled(source, bound, folder)
    results = []
    for backwards in (False, True):
        guarded = {name: _Guarded(arrays[name]) for name in parameters}
        pointers = [guarded[name].inside.ctypes.data_as(ctypes.c_void_p) for name in parameters]
        if library.run((ctypes.c_void_p * len(pointers))(*pointers), int(backwards)):
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


def _compiled(source: str, bound: Mapping[str, int], folder: Path) -> tuple[list[str], ctypes.CDLL]:
    """Return the names of the kernel's parameters, in order, and the library."""
    headings = re.findall(r'extern "C" __global__ void[^;{]*\{', source)
    assert len(headings) == 1, f"{len(headings)} kernels"
    parameters = re.findall(r"([\w ]+)\*(?: __restrict__)? (\w+?)(?:_ptr)?(?=[,)])", headings[0])
    known = {
        "KERNEL": re.findall(r"(\w+)\(", headings[0])[-1],
        "ARGUMENTS": ", ".join(f"({kind.strip()}*)arrays[{at}]" for at, (kind, _) in enumerate(parameters)),
        "DYNAMIC_BYTES": str(_DYNAMIC_BYTES),
    }
    for axis in "xyz":
        known[f"THREADS_{axis.upper()}"] = str(bound.get(f"threadIdx.{axis}", 1))
        known[f"BLOCKS_{axis.upper()}"] = str(bound.get(f"blockIdx.{axis}", 1))
    run = re.sub(r"\b(" + "|".join(known) + r")\b", lambda found: known[found[1]], (HERE / "blocks.cc").read_text())
    text = f'#include "cuda.h"\n{_in_cpp(source)}\n#undef uchar\n{run}'
    name = folder / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    name.with_suffix(".cc").write_text(text)
    options = ["-O1", "-fwrapv", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", f"-I{HERE}"]
    command = ["g++", *options, "-o", name.with_suffix(".so"), name.with_suffix(".cc")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise EmulationError(f"its source cannot be compiled: {errors[:3]}")
    return [each for _, each in parameters], ctypes.CDLL(str(name.with_suffix(".so")))


def _in_cpp(source: str) -> str:
    """Return the source as a C++ compiler takes it, where headers cannot make it so. Raises :class:`EmulationError`."""
    if "cp.async.c" in source.replace("cp.async.commit_group", ""):
        raise EmulationError("it copies to shared memory beside the kernel, which is not emulated")
    # Without such copies, what waits for them does nothing.
    source = re.sub(r'asm volatile\("cp\.async\.[^;]*;[^;]*;', "", source)
    return source.replace("extern __shared__", "extern").replace("alignas(", "__align__(")
