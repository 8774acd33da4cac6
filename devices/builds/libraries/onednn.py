"""oneDNN: its installed package, the linker inputs of kernels that call it, and its licence.

The kernels call functions of ``onednn.c``, which this machine's C compiler compiles. A process of ours loads oneDNN's
shared library (:func:`load`) before it loads such kernels. The system's loader then finds the library by its name,
independent of its path. Other programs find it beside the file that needs it.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from devices.host.file_cache import FileCache, key_of, user_folder
from devices.host.owned_folder import owned_folder
from fleet_tune.base.errors import UserError

ONEDNN = "onednn"
"""Name of oneDNN as an option, and in a target's ``libs``."""
SHARED_LIBRARY = "libdnnl.so.3"
LICENCES = "libdnnl.licences.txt"
"""File with the licences of oneDNN and of its third-party parts, published with a network that needs it."""
_PREFIX = b"fleet_tune_onednn_"
_PACKAGE, _HEADERS = "onednn-cpu-gomp", "onednn-devel-cpu-gomp"
_SOURCE = Path(__file__).with_name("onednn.c")
_COMPILERS = ("cc", "gcc", "clang")
_OPTIONS = ("-O2", "-fPIC", "-w", "-c")
_COMPILE_SECS = 60.0


class LibraryMissingError(UserError):
    """oneDNN's package, or something that it needs, is not installed."""


@dataclass(frozen=True)
class OneDnn:
    """The installed package."""

    version: str
    shared_library: Path
    headers: Path
    """Folder of ``dnnl.h``."""
    licences: tuple[Path, ...]

    @property
    def description(self) -> dict[str, str]:
        """Name, version and licence, in the form of a network's manifest."""
        return {"name": "oneDNN", "package": f"{_PACKAGE} {self.version}", "licence": "Apache-2.0"}

    def files(self) -> dict[str, bytes]:
        """Return the files that are published with a network that calls oneDNN, by name: the shared library and the
        licences."""
        texts = b"\n".join(each.read_bytes() for each in self.licences)
        return {SHARED_LIBRARY: self.shared_library.read_bytes(), LICENCES: texts}


@cache
def installed() -> OneDnn:
    """Return the installed package. Raises :class:`LibraryMissingError` if it, its headers or a C compiler is
    missing."""
    library, header = _file(_PACKAGE, SHARED_LIBRARY), _file(_HEADERS, "dnnl.h")
    _compiler()
    named = ("LICENSE", "THIRD-PARTY-PROGRAMS")
    licences = tuple(_file(_PACKAGE, name) for name in named)
    return OneDnn(importlib.metadata.version(_PACKAGE), library, header.parent, licences)


def load(shared_library: Path) -> None:
    """Load oneDNN into this process, for kernels that are loaded later. Raises :class:`LibraryMissingError`."""
    try:
        ctypes.CDLL(str(shared_library))
    except OSError as error:
        raise LibraryMissingError(
            f"oneDNN cannot be loaded: {error}", "install GNU's OpenMP runtime (Debian: libgomp1)"
        ) from error


def load_installed() -> None:
    """Load the installed oneDNN (see :func:`load`). Needs neither its headers nor a compiler."""
    load(_file(_PACKAGE, SHARED_LIBRARY))


def calls_onednn(object_file: Path) -> bool:
    """Return true if an object file calls functions of ``onednn.c``."""
    return _PREFIX in object_file.read_bytes()


def link_inputs(folder: Path) -> Sequence[str]:
    """Return the additional linker inputs for object files that call oneDNN. Generated files are written into
    ``folder``. Raises :class:`LibraryMissingError`."""
    library = installed()
    compiled = folder / "onednn.o"
    compiled.write_bytes(_compiled(library))
    return (str(compiled), str(library.shared_library))


@cache
def _compiled(library: OneDnn) -> bytes:
    """Return the object file of ``onednn.c``, compiled once for each version and machine."""
    files = FileCache(user_folder(), ".object", "object files")
    key = key_of([_SOURCE.read_text(), library.version, str(library.headers), *_OPTIONS])
    found = files.find(key)
    if found is not None:
        return found
    with owned_folder("library") as folder:
        output = folder / "onednn.o"
        done = subprocess.run(
            [_compiler(), *_OPTIONS, f"-I{library.headers}", str(_SOURCE), "-o", str(output)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMPILE_SECS,
        )
        if done.returncode != 0:
            raise LibraryMissingError(
                f"the calls of oneDNN cannot be compiled ({done.stderr.strip()[-300:]})",
                "install gcc with the headers of the C library (Debian: gcc libc6-dev), or leave --library out",
            )
        made = output.read_bytes()
    files.store(key, made)
    return made


def _compiler() -> str:
    for name in _COMPILERS:
        if shutil.which(name):
            return name
    raise LibraryMissingError(
        "no C compiler found on this machine: --library onednn needs one", "install gcc, or leave --library out"
    )


def _file(package: str, name: str) -> Path:
    """Return a file of an installed package by its name. Raises :class:`LibraryMissingError`."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for each in importlib.metadata.files(package) or []:
            path = Path(str(each.locate())).resolve()
            if each.name == name and path.is_file():
                return path
    raise LibraryMissingError(
        f"{name} of the package {package} is not installed: --library onednn needs it",
        "pip install 'fleet-tune[onednn]' (Linux on x86-64), or leave --library out",
    )
