"""Linking on the device itself, for a build host that has no linker for it. Loads no TVM: it runs on small boards.

The input is a tar archive of position-independent object files; ``ld`` links them to one shared object, or a C compiler
does if the device has no ``ld``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from devices.host.owned_folder import owned_folder

# All symbols are bound at loading: a missing one is then an error, not the end of the process at its first call.
LINK_OPTIONS = ("-shared", "-z", "noexecstack", "-z", "now")
LINK_TIMEOUT_SECS = 60.0
# Libraries that this process has loaded, by path: device, inode and time of change of the file.
_LOADED: dict[Path, tuple[int, int, int]] = {}
NO_LINKER = "no linker on the device"
"""Answer of :func:`link_archive` if the device has no linker."""
_MAX_OBJECTS = 64


def is_archive(library: bytes) -> bool:
    """Return true if the bytes are an archive of objects, still to be linked; false for a shared object."""
    return library[257:262] == b"ustar"


def link_archive(archive: Path, output: Path) -> str:
    """Link the objects in ``archive`` to the shared object ``output``. Returns what went wrong; empty on success."""
    linker = shutil.which("ld")
    command = [linker, *LINK_OPTIONS] if linker else []
    if not linker:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            return NO_LINKER
        command = [compiler, "-shared", "-nostdlib", "-Wl,-z,now"]
    with owned_folder("link", output.parent) as folder:
        try:
            objects = _unpack(archive, folder)
            done = subprocess.run(
                [*command, "-o", str(output), *map(str, objects)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LINK_TIMEOUT_SECS,
            )
        except (OSError, ValueError, tarfile.TarError, subprocess.TimeoutExpired) as error:
            return f"cannot link: {error}"
    return "" if done.returncode == 0 else f"{command[0]} failed: {done.stderr.strip()[-500:]}"


@contextlib.contextmanager
def linked(library: Path) -> Iterator[Path]:
    """Provide the path of ``library`` within the block, or of the shared object that is linked from it if it is an
    archive of objects.

    A library at the same path as another one that this process has loaded is copied: the system's loader would return
    the one that it has loaded from that path. Raises RuntimeError if it cannot be linked.
    """
    with library.open("rb") as file:
        head = file.read(512)
        status = os.fstat(file.fileno())
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
    if not is_archive(head) and _LOADED.setdefault(library.resolve(), identity) == identity:
        yield library
        return
    with owned_folder("link") as folder:
        output = folder / "linked.so"
        if is_archive(head):
            problem = link_archive(library, output)
            if problem:
                raise RuntimeError(f"{problem}: install binutils (ld) or gcc" if problem == NO_LINKER else problem)
        else:
            shutil.copyfile(library, output)  # a symbolic link would be resolved
        yield output


def _unpack(archive: Path, folder: Path) -> list[Path]:
    """Write the members of the archive to files whose names we choose. Raises ValueError for anything but files."""
    objects: list[Path] = []
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or len(objects) >= _MAX_OBJECTS:
                raise ValueError("not an archive of object files")
            path = folder / f"{len(objects)}.o"
            path.write_bytes(content.read())
            objects.append(path)
    return objects
