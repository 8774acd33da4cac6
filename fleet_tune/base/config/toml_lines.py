"""Place of a value in a TOML text.

``tomllib`` reports no line numbers, so prefixes of the text are parsed. A statement ends on the first line up to which
the text is valid TOML and has the value. The TOML parser itself decides, so this works for every way to write a value
(dotted keys, inline tables, strings over several lines). A longer prefix never loses a value, so bisection finds the
line.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Sequence
from typing import Any

# Largest number of lines of one value. Each of its lines is one more attempt, and a large file must not take minutes.
_MOST_LINES = 50


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Return the line, from 1, on which the statement that gives the value at ``path`` begins; ``text`` is valid TOML.

    ``path``: keys of tables and indices of arrays from the top, as ``("device", 1, "threads")``. If there is no such
    value, return the line of the innermost table around it that exists; 1 if none exists.
    """
    lines = text.split("\n")
    existing = path[: _known_depth(tomllib.loads(text), path)]
    if not existing:
        return 1

    def has_value(count: int) -> bool:
        parsed, _ = _valid_prefix(lines, count)
        return _known_depth(parsed, existing) == len(existing)

    last = bisect.bisect_left(range(len(lines)), True, key=has_value)
    _, before = _valid_prefix(lines, last - 1)
    return before + 1


def line_of_error(error: tomllib.TOMLDecodeError, text: str) -> int:
    """Return the line, from 1, of a syntax error that ``tomllib`` found in ``text``."""
    match = re.search(r"\(at line (\d+),", str(error))
    return int(match[1]) if match else text.rstrip("\n").count("\n") + 1


def _known_depth(value: Any, path: Sequence[str | int]) -> int:
    """Return the number of leading keys and indices of ``path`` that lead to a value."""
    for depth, key in enumerate(path):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return depth
    return len(path)


def _valid_prefix(lines: Sequence[str], count: int) -> tuple[dict[str, Any], int]:
    """Return the longest prefix of at most ``count`` lines that is valid TOML: its value and its number of lines.
    Within a value of more than :data:`_MOST_LINES` lines no prefix is found, and the empty one is returned."""
    for _ in range(_MOST_LINES):
        try:
            return tomllib.loads("".join(f"{line}\n" for line in lines[:count])), count
        except tomllib.TOMLDecodeError:
            count -= 1
    return {}, 0
