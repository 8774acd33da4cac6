"""Exceptions as one line of text, for measurements, reasons and messages."""

from __future__ import annotations

from collections.abc import Sequence

MAX_DETAIL = 500


def brief(error: BaseException) -> str:
    """Return type and first line of an exception."""
    return _told(error, _lines(error)[:1])


def last_line(error: BaseException) -> str:
    """Return type and last line of an exception: TVM puts stacks and pages of code in front."""
    return _told(error, _lines(error)[-1:])


def introduced(error: BaseException) -> str:
    """Return :func:`brief`, with the second line where the first one ends in a colon."""
    lines = _lines(error)
    return _told(error, [" ".join(lines[:2])]) if lines and lines[0].endswith(":") else brief(error)


def after(error: BaseException, mark: str) -> str:
    """Return type and the rest of the last line that begins with ``mark``; the first line if no line begins with it."""
    marked = [line.removeprefix(mark) for line in _lines(error) if line.startswith(mark)]
    return _told(error, marked[-1:]) if marked else brief(error)


def line_with(error: BaseException, marks: Sequence[str]) -> str:
    """Return type and the first line that has one of ``marks``; empty if no line has one."""
    marked = [line for line in _lines(error) if any(mark in line for mark in marks)]
    return _told(error, marked[:1]) if marked else ""


def _told(error: BaseException, lines: list[str]) -> str:
    name = type(error).__name__
    return f"{name}: {lines[0]}"[:MAX_DETAIL] if lines else name


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]
