"""Small files in which the system tells something about the machine."""

from __future__ import annotations

from pathlib import Path


def text_of(file: Path) -> str:
    """Return the text of a file, without the zeros that end a text of the device tree; empty if it cannot be read."""
    try:
        return file.read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def number_of(file: Path) -> int:
    """Return the whole number in a file; 0 if it cannot be read, as for a sensor that is switched off."""
    try:
        return int(text_of(file))
    except ValueError:
        return 0
