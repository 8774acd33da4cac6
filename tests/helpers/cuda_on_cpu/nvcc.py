"""A compiler of CUDA source for this CPU, with nvcc's command line: ``nvcc.py --cubin -arch=sm_89 -o OUTPUT SOURCE``.

What it makes is a shared object. For each kernel it has a function ``run_NAME(parameters, extents, backwards)`` over
the addresses of the kernel's arguments, and ``parameters_NAME()``, their number. Loads no TVM.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
_OPTIONS = ("-O1", "-fwrapv", "-fno-gnu-unique", "-fno-strict-aliasing", "-w", "-fPIC", f"-I{HERE}")
_HEADER = "cuda.h.gch"  # the compiler takes it from the folder of what it compiles
_DYNAMIC_BYTES = 232_448  # of shared memory, at most, in the largest GPU
_KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\([^;{]*\{')
_BARRIERS = re.compile(r"__sync|__shfl|wmma|mma_|bar\.sync")


class SourceError(Exception):
    """Source that cannot be compiled; the text says why."""


def compile_for_cpu(source: str, output: Path) -> None:
    """Compile the kernels of ``source`` into the shared object ``output``, with the C++ beside it. Raises
    :class:`SourceError`."""
    kernels = list(_KERNEL.finditer(source))
    text = "\n".join(
        (
            '#include "cuda.h"',
            _in_cpp(source),
            "#undef uchar",
            f"#define DYNAMIC_BYTES {_DYNAMIC_BYTES if 'extern __shared__' in source else 16}",
            f"#define HAS_BARRIERS {int(bool(kernels and _BARRIERS.search(source[kernels[0].start() :])))}",
            '#include "blocks.cc"',
            *(f"ENTRY({each[1]})" for each in kernels),
        )
    )
    written = output.with_suffix(".cc")
    written.write_text(text)
    _compile("-shared", "-o", str(output), str(written))


def precompile(folder: Path) -> None:
    """Leave the compiled header in a folder, unless it is there: what is compiled into this folder then takes half the
    time. Raises :class:`SourceError`."""
    if not (folder / _HEADER).exists():
        made = folder / f"{os.getpid()}.{_HEADER}"
        _compile("-x", "c++-header", "-o", str(made), str(HERE / "cuda.h"))
        made.replace(folder / _HEADER)


def _compile(*arguments: str) -> None:
    done = subprocess.run(["g++", *_OPTIONS, *arguments], capture_output=True, text=True, timeout=1200)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise SourceError(f"its source cannot be compiled: {errors[:3]}")


def _in_cpp(source: str) -> str:
    """Return the source as a C++ compiler takes it, where headers cannot make it so. Raises :class:`SourceError`."""
    if "cp.async.c" in source.replace("cp.async.commit_group", ""):
        raise SourceError("it copies to shared memory beside the kernel, which is not emulated")
    # Without such copies, what waits for them does nothing.
    source = re.sub(r'asm volatile\("cp\.async\.[^;]*;[^;]*;', "", source)
    return source.replace("extern __shared__", "extern").replace("alignas(", "__align__(")


def main(arguments: list[str]) -> int:
    if "--version" in arguments:
        print("CUDA source for the CPU")
        return 0
    output, source = Path(arguments[arguments.index("-o") + 1]), Path(arguments[-1])
    try:
        compile_for_cpu(source.read_text(), output)
    except SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
