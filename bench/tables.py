"""Tables in Markdown, and the page that they are written into, each between its two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark
from bench.result import BenchError
from fleet_tune.base.records.files.atomic_file import write_atomically


def write_table(page: Path, benchmark: Benchmark, result: Mapping[str, Any], command: str) -> None:
    """Rewrites the benchmark's part of ``page`` from its ``result`` (a JSON object), which ``command`` gave.

    Raises :class:`BenchError` where the page has no markers for it.
    """
    part = f"`{command}`\n\n{benchmark.table(result)}\n\n{machine_line(result)}"
    write_atomically(page, replace_table(page.read_text(), benchmark.name, part).encode())


def replace_table(text: str, name: str, table: str) -> str:
    """``text`` with what stands between the markers of ``name`` replaced by ``table``."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    head, opened, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (opened and closed):
        raise BenchError(f"the markers {begin} and {end} are missing")
    return f"{head}{begin}\n{table.strip()}\n{end}{tail}"


def machine_line(result: Mapping[str, Any]) -> str:
    machine = result["details"]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}, {versions}."
    )


def markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table whose first column is text and whose others are figures."""
    align = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, tuple(align), *rows))


def median_and_range(figures: Mapping[str, Any], scale: float = 1.0, digits: int = 2) -> str:
    """``median (min to max)`` of a spread."""
    low, mid, high = (figures[key] * scale for key in ("min", "median", "max"))
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
