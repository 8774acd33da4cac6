"""TOML files that people write. Pydantic checks them; a mistake is told in one line, with file, line and key."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fleet_tune.base.config.toml_lines import line_of, line_of_error
from fleet_tune.base.errors import UserError

_MOST_BYTES = 128 << 10


class Frozen(BaseModel):
    """A table of such a file. Unknown keys and values of another type are refused, and instances are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_Content = TypeVar("_Content", bound=Frozen)


@dataclass(frozen=True)
class FileKind:
    """Kind of a TOML file, for messages.

    ``what``: its name, such as ``the fleet file``; ``error``: the error for a mistake; ``example``: a file to look at;
    ``give``: the next step if the file cannot be read. ``tables``: the type of each table by its name; ``lists``: the
    tables in double brackets. ``expected``: allowed values by key, or by ``table.key``.
    """

    what: str
    error: type[UserError]
    example: str
    give: str
    tables: Mapping[str, type[Frozen]]
    lists: frozenset[str]
    expected: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TomlText:
    """A file as read: its path for messages, and its text to find lines in."""

    path: Path
    text: str = field(repr=False)

    def where(self, path: Sequence[str | int]) -> str:
        """Return the file and line of the value at ``path`` (see :func:`fleet_tune.base.config.toml_lines.line_of`)."""
        return f"{self.path}, line {line_of(self.text, path)}"


def read_toml(path: Path, kind: FileKind, content: type[_Content]) -> tuple[_Content, TomlText]:
    """Return the file at ``path`` as ``content``, and its text. Raise ``kind.error``, which names the file and, for a
    mistake in it, line and key."""
    text = _text(path, kind)
    example = f"write it as {kind.example}"
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise kind.error(
            f"{path}, line {line_of_error(error, text)}: not valid TOML: {reason}", "correct this line"
        ) from error
    except RecursionError as error:
        raise kind.error(f"{path}: its values are nested too deeply", example) from error
    except ValueError as error:  # a number with thousands of digits
        raise kind.error(f"{path}: a number has too many digits", example) from error
    source = TomlText(path, text)
    try:
        return content.model_validate(tables), source
    except ValidationError as error:
        # Only one mistake is told, in one line. An unknown key comes first: it often explains a missing one.
        problems = error.errors(include_url=False)
        problem = min(problems, key=lambda candidate: candidate["type"] != "extra_forbidden")
        raise _mistake(problem["type"], problem["loc"], problem["input"], source, kind, content) from error


def _text(path: Path, kind: FileKind) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise kind.error(f"{kind.what} {path} has over {_MOST_BYTES >> 10} KiB", kind.give)
        return content.decode("utf-8-sig")  # some editors write a byte order mark
    except OSError as error:
        raise kind.error(f"cannot read {kind.what} {path}: {os.strerror(error.errno or 0)}", kind.give) from error
    except UnicodeDecodeError as error:
        raise kind.error(f"{kind.what} {path} is no UTF-8 text", "save it as UTF-8 text") from error


def _mistake(
    problem: str,
    location: tuple[str | int, ...],
    value: Any,
    source: TomlText,
    kind: FileKind,
    content: type[Frozen],
) -> UserError:
    """Return the error for a problem that pydantic found. ``location``: (table, index, key, ...), (table, key, ...) or
    (table,)."""
    table = str(location[0])
    path = location[:3] if table in kind.lists else location[:2]
    where, key = source.where(path), path[-1]
    brackets = f"[[{table}]]" if table in kind.lists else f"[{table}]"
    if problem == "extra_forbidden":
        known = list((kind.tables[table] if len(path) > 1 else content).model_fields)
        close = difflib.get_close_matches(str(key), known, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        if len(path) > 1:
            return kind.error(
                f"{where}: unknown key {key!r} in {brackets}", f"{guess}keys known here: {', '.join(known)}"
            )
        names = "tables" if set(known) == set(kind.tables) else "keys and tables"
        return kind.error(f"{where}: unknown key {key!r}", f"{guess}{names} known here: {', '.join(known)}")
    if problem == "missing":
        return kind.error(f"{where}: this {brackets} has no {key}", f"add {key}: {_expected(kind, table, key)}")
    if isinstance(key, int):
        key = table
    return kind.error(f"{where}: {key} = {as_toml(value)} is not valid", f"give {_expected(kind, table, key)}")


def _expected(kind: FileKind, table: str, key: str | int) -> str:
    return kind.expected.get(f"{table}.{key}") or kind.expected[str(key)]


def as_toml(value: Any) -> str:
    """Return a value about as it is written in the file, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
