"""Files that are written in one step."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """Write a file: who reads meanwhile finds the old one or the new one, never a part of it.

    ``content``: the file, or the parts it is made of. ``durable``: so that it is there after a crash of the machine
    too; without that, a crash may leave an empty or partial file, and whoever reads it must notice. Raises OSError, the
    old one kept.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # it may not be there
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the new names of files durable."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Make what was written to a file, which is closed by now, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
