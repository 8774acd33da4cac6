"""Place of a value in a TOML text.

``tomllib`` tells no line numbers, so prefixes of the text are parsed: a statement ends on the first line up to which
the text is valid TOML and has the value. TOML's own parser decides, so this holds for every way to write a value
(dotted keys, inline tables, strings over several lines), and more lines never lose a value, so bisection finds it.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Sequence
from typing import Any

# Of one value: each line of it is one more attempt, and a large file must not take minutes.
_MOST_LINES = 50


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line, from 1, on which the statement that gives the value at ``path`` begins; ``text`` is valid TOML.

    ``path``: keys of tables and indices of arrays from the top, as ``("device", 1, "threads")``. Where there is no such
    value, the line of the innermost table around it that exists; 1 where none does.
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
    """The line, from 1, of a syntax error that ``tomllib`` found in ``text``."""
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
    """The longest prefix of at most ``count`` lines that is valid TOML: its value and its number of lines. It is not
    found within a value of very many lines: that of no lines is returned."""
    for _ in range(_MOST_LINES):
        try:
            return tomllib.loads("".join(f"{line}\n" for line in lines[:count])), count
        except tomllib.TOMLDecodeError:
            count -= 1
    return {}, 0
