"""oneDNN: where its package is installed, what kernels that call it are linked with, and its licence.

The kernels call the functions of ``onednn.c``, which is compiled here, by this machine's compiler. oneDNN's shared
library is looked for beside the file that needs it, then in the package.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from devices.host.file_cache import FileCache, key_of, user_folder
from devices.host.owned_folder import owned_folder
from fleet_tune.base.errors import UserError

ONEDNN = "onednn"
"""Its name as an option, and among a target's ``libs``."""
SHARED_LIBRARY = "libdnnl.so.3"
LICENCES = "libdnnl.licences.txt"
"""File with its licence, and those of what is part of it, beside a network that needs it."""
_PREFIX = b"fleet_tune_onednn_"
_PACKAGE, _HEADERS = "onednn-cpu-gomp", "onednn-devel-cpu-gomp"
_SOURCE = Path(__file__).with_name("onednn.c")
_COMPILERS = ("cc", "gcc", "clang")
_OPTIONS = ("-O2", "-fPIC", "-w", "-c")
_COMPILE_SECS = 60.0


class LibraryMissingError(UserError):
    """oneDNN's package, or the compiler for what calls it, is not installed."""


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
        """Name, version and licence, as the manifest of a network has them."""
        return {"name": "oneDNN", "package": f"{_PACKAGE} {self.version}", "licence": "Apache-2.0"}

    def files(self) -> dict[str, bytes]:
        """Return the files that go along with a network that calls it: its shared library, and its licences."""
        texts = b"\n".join(each.read_bytes() for each in self.licences)
        return {SHARED_LIBRARY: self.shared_library.read_bytes(), LICENCES: texts}


@cache
def installed() -> OneDnn:
    """Return the installed package. Raises :class:`LibraryMissingError` where it, its headers or a C compiler is
    missing."""
    library = _file(_PACKAGE, SHARED_LIBRARY)
    header = _file(_HEADERS, "dnnl.h")
    if library is None or header is None:
        raise LibraryMissingError(
            f"the package {_HEADERS if library else _PACKAGE} is not installed: --library onednn needs it",
            "pip install 'fleet-tune[onednn]' (Linux on x86-64), or leave --library out",
        )
    _compiler()
    named = ("LICENSE", "THIRD-PARTY-PROGRAMS")
    licences = tuple(each for name in named if (each := _file(_PACKAGE, name)) is not None)
    return OneDnn(importlib.metadata.version(_PACKAGE), library, header.parent, licences)


def calls_onednn(object_file: Path) -> bool:
    """Return true if an object file calls functions of ``onednn.c``."""
    return _PREFIX in object_file.read_bytes()


def link_inputs(folder: Path, *, by_compiler: bool) -> Sequence[str]:
    """Return what a linker needs beside object files that call oneDNN. Files that are made for it are written into
    ``folder``. ``by_compiler``: the linker is called through a compiler. Raises :class:`LibraryMissingError`."""
    library = installed()
    compiled = folder / "onednn.o"
    compiled.write_bytes(_compiled(library))
    places = f"$ORIGIN:{library.shared_library.parent}"
    search = (f"-Wl,-rpath,{places}",) if by_compiler else ("-rpath", places)
    return (str(compiled), str(library.shared_library), *search)


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


def _file(package: str, name: str) -> Path | None:
    """Return a file of an installed package by its name; None where it has none."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (Path(str(each.locate())).resolve() for each in files if each.name == name)
    return next((path for path in paths if path.is_file()), None)
