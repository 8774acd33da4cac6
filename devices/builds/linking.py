"""Linking of a compiled TVM module to the bytes of a shared object.

The linker is called directly: for one kernel ``ld -shared`` takes 3 ms, ``cc -shared`` 15 ms. A kernel needs no start
files or libraries: its calls of libc and libm are resolved in the process that loads it.

If this machine has no linker for the target, the object files are sent as an archive, and the device links them
(:mod:`devices.rpc.remote_linking`).
"""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import tvm

from devices.builds.libraries import onednn
from devices.host.owned_folder import owned_folder
from devices.rpc.remote_linking import LINK_OPTIONS, LINK_TIMEOUT_SECS
from devices.targets import is_native, library_of
from fleet_tune.base.errors import UserError

_BESIDE = ("-rpath", "$ORIGIN")
"""Linker option: libraries are searched for beside the file that needs them."""
# Options with which a compiler links position-independent objects and adds nothing to them.
_COMPILER_OPTIONS = ("-shared", "-nostdlib", "-Wl,-z,now", "-Wl,-z,noexecstack")


class LinkerError(UserError):
    """Neither the build host nor the device has a linker for the target: install one."""


def link(module: tvm.runtime.Module, target: str) -> bytes:
    """Return the shared object of ``module`` (host code, and device code of its imports), built for the canonical
    ``target``.

    If this machine has no linker for the host of a foreign ``target``, returns an archive of the object files instead
    (see :func:`devices.rpc.remote_linking.is_archive`).

    Raises LinkerError if this machine has no linker for itself, LibraryMissingError if the code calls a library that is
    not installed, RuntimeError if linking fails.
    """
    linker = find_linker(target)

    def run(output: str, inputs: Sequence[str], **_options: object) -> None:
        libraries: Sequence[str] = ()
        if library_of(target) == onednn.ONEDNN and any(onednn.calls_onednn(Path(each)) for each in inputs):
            libraries = onednn.link_inputs(Path(output).parent)
        if linker is None:
            _archive(output, inputs)
            return
        if libraries:
            libraries = (*libraries, *(_BESIDE if linker[0].endswith("ld") else (f"-Wl,{','.join(_BESIDE)}",)))
        done = subprocess.run(
            [*linker, "-o", output, *inputs, *libraries],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LINK_TIMEOUT_SECS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{linker[0]} failed: {done.stderr.strip()[-500:]}")

    with owned_folder("link") as folder:
        output = folder / "kernel.so"
        module.export_library(str(output), fcompile=run, workspace_dir=str(folder))
        return output.read_bytes()


@cache
def find_linker(target: str) -> tuple[str, ...] | None:
    """Return the command that links position-independent objects for the host of ``target``; None if the device must
    link them.

    Raises LinkerError if the target is this machine's own architecture and it has no linker.
    """
    if is_native(target):
        for name in ("ld", "ld.lld"):
            if shutil.which(name):
                return (name, *LINK_OPTIONS)
        for name in ("cc", "gcc", "clang"):
            if shutil.which(name):
                return (name, *_COMPILER_OPTIONS)
        raise LinkerError("no linker found on this machine", "install binutils (ld) or gcc")
    linkers = foreign_linkers(target_triple(target))
    return linkers[0] if linkers else None


def foreign_linkers(triple: str) -> tuple[tuple[str, ...], ...]:
    """Return all commands on this machine that link for another architecture's ``triple``, the quickest first: a cross
    ``ld``, LLVM's linker, a cross gcc, zig (its package ``ziglang`` or its program)."""
    architecture = triple.split("-")[0]
    linkers: list[tuple[str, ...]] = []
    for name in dict.fromkeys((f"{triple}-ld", f"{architecture}-linux-gnu-ld", "ld.lld")):
        if shutil.which(name):
            linkers.append((name, *LINK_OPTIONS))
    for name in dict.fromkeys((f"{triple}-gcc", f"{architecture}-linux-gnu-gcc")):
        if shutil.which(name):
            linkers.append((name, *_COMPILER_OPTIONS))
    zig: tuple[str, ...] = ()
    if importlib.util.find_spec("ziglang") is not None:
        zig = (sys.executable, "-m", "ziglang")
    elif shutil.which("zig"):
        zig = ("zig",)
    if zig:
        linkers.append((*zig, "cc", "-target", f"{architecture}-linux-gnu", *_COMPILER_OPTIONS))
    return tuple(linkers)


def target_triple(target: str) -> str:
    """Return LLVM's triple of the CPU that a canonical target's host code runs on; empty if it is this machine's."""
    attributes = json.loads(target)
    return str((attributes.get("host") or attributes).get("mtriple", ""))


def _archive(output: str, inputs: Sequence[str]) -> None:
    """Write the object files to a tar archive. Equal files give an equal archive."""
    with tarfile.open(output, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, name in enumerate(inputs):
            content = Path(name).read_bytes()
            member = tarfile.TarInfo(f"object-{number}.o")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
