"""From a compiled TVM module to the bytes of a shared object, quickly.

The linker is called directly: for one kernel ``ld -shared`` takes 3 ms where ``cc -shared`` takes 15 ms. A kernel needs
no start files or libraries: what it calls of libc and libm is resolved in the process that loads it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import tvm

from devices.targets import is_native
from fleet_tune.errors import UserError

LINK_TIMEOUT_SECS = 60.0


class LinkerError(UserError):
    """No linker for the target on the build host: install one."""


def link(module: tvm.runtime.Module, target: str) -> bytes:
    """Shared object of ``module`` (host code, and device code of its imports), built for the canonical ``target``.

    Raises LinkerError if there is no linker for the target's host, RuntimeError if linking fails.
    """
    linker = find_linker(target)

    def run(output: str, inputs: Sequence[str], **_options: object) -> None:
        done = subprocess.run(
            [*linker, "-o", output, *inputs],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LINK_TIMEOUT_SECS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{linker[0]} failed: {done.stderr.strip()[-500:]}")

    with tempfile.TemporaryDirectory(prefix="fleet-tune-link-") as folder:
        output = Path(folder) / "kernel.so"
        module.export_library(str(output), fcompile=run, workspace_dir=folder)
        return output.read_bytes()


@cache
def find_linker(target: str) -> tuple[str, ...]:
    """Command that links position-independent objects for the host of ``target``. Raises LinkerError."""
    # All symbols are bound at loading: a missing one is then an error, and does not end the process at its first call.
    options = ("-shared", "-z", "noexecstack", "-z", "now")
    if is_native(target):
        for name in ("ld", "ld.lld"):
            if shutil.which(name):
                return (name, *options)
        for name in ("cc", "gcc", "clang"):
            if shutil.which(name):
                return (name, "-shared", "-Wl,-z,now")
        raise LinkerError("no linker found on this machine", "install binutils (ld) or gcc")
    attributes = json.loads(target)
    triple = str((attributes.get("host") or attributes)["mtriple"])
    architecture = triple.split("-")[0]
    for name in (f"{triple}-ld", f"{architecture}-linux-gnu-ld", "ld.lld"):
        if shutil.which(name):
            return (name, *options)
    raise LinkerError(
        f"no linker for {triple} found on this build host",
        f"install lld, or the package binutils-{architecture.replace('_', '-')}-linux-gnu",
    )
