"""Files that are written in one step."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """Write a file in one step: a reader at the same time finds the old file or the new one, never a part of it.

    ``content``: the content of the file, or its parts in order. ``durable``: true if the file must survive a crash of
    the machine. Otherwise a crash may leave an empty or partial file, which readers must detect. Raise OSError, and
    then keep the old file.
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
    """Make new names of files in this folder durable."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Make the content of a closed file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
