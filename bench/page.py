"""The pages that show the figures of ``bench/results``: a summary in docs/benchmarks.md, all tables on another page.

Both are written from the results alone, so a change of the measured code does not change them. Each result names its
commit; :func:`stale_text` lists the results whose code has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.benchmark import Benchmark
from bench.latency.float32_summary import float32_summary, is_float32_row
from bench.processes import ROOT
from bench.result import BenchError
from bench.saved_result import SavedResult
from bench.tables import markdown, section_link
from bench.tuning.quality_summary import is_quality, quality_summary
from fleet_tune.base.records.files.atomic_file import write_atomically

SUMMARY_PAGE = ROOT / "docs" / "benchmarks.md"
TABLES_PAGE = ROOT / "docs" / "generated" / "benchmarks.md"
_DIRTY = " with uncommitted changes"
BEGIN, END = "<!-- bench:summary -->", "<!-- /bench:summary -->"
"""Comments that mark the start and the end of the summary."""


def write_pages(
    results: Sequence[SavedResult],
    benchmarks: Mapping[str, Benchmark],
    summary_page: Path = SUMMARY_PAGE,
    tables_page: Path = TABLES_PAGE,
) -> None:
    """Write both pages anew. Raises :class:`BenchError` if the summary page has no markers, or if a result has no
    benchmark or another format."""
    summary = with_summary(summary_page.read_text(), results)
    tables = tables_text(results, benchmarks, tables_page.parent)
    tables_page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(tables_page, tables.encode())
    write_atomically(summary_page, summary.encode())


def with_summary(text: str, results: Sequence[SavedResult]) -> str:
    """Return ``text`` with the summary between the two markers. Raises :class:`BenchError` if a marker is missing."""
    head, opened, rest = text.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not (opened and closed):
        raise BenchError(f"the page has no markers {BEGIN} and {END}: add them where the summary is to stand")
    return f"{head}{BEGIN}\n{summary_text(results)}\n{END}{tail}"


def summary_text(results: Sequence[SavedResult]) -> str:
    """Return the tables of time to quality and of the float32 networks, then a table with a row for each other result
    and a line for each of the machines in it."""
    if not results:
        return "No results yet."
    tables = [*filter(None, (quality_summary(results), float32_summary(results)))]
    others = [saved for saved in results if not is_quality(saved) and not is_float32_row(saved)]
    return "\n\n".join((*tables, *(_rows(others) if others else ())))


def _rows(results: Sequence[SavedResult]) -> tuple[str, ...]:
    machines = list(dict.fromkeys(machine_line(saved) for saved in results))
    letters = {line: chr(ord("A") + at) if at < 26 else str(at) for at, line in enumerate(machines)}
    rows = [
        (
            section_link(saved.key, saved.key),
            *(_figure(saved.result[side]) for side in ("ours", "peer", "ratio")),
            str(saved.result["unit"]),
            f"{letters[machine_line(saved)]}, {saved.date[:10]}, {saved.commit[:8]}{_DIRTY if saved.dirty else ''}",
        )
        for saved in results
    ]
    header = ("result", "ours", "peer", "ratio", "unit", "machine, date, commit")
    lines = [f"Machine {letter}: {line}" for line, letter in letters.items()]
    return markdown(header, rows), *lines


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def stale_text(results: Sequence[SavedResult]) -> str:
    """Return a line with the command for each result whose code or data has changed since; one line if there is no such
    result."""
    stale = [
        f"{saved.key}: {len(files)} of its files, {saved.command}" for saved in results if (files := saved.changed())
    ]
    if not stale:
        return "No result is older than its code."
    return "\n".join(("Results whose code has changed since, and how to take them again:", *stale))


def draw_pictures(
    results: Sequence[SavedResult], benchmarks: Mapping[str, Benchmark], folder: Path = TABLES_PAGE.parent
) -> list[str]:
    """Draw the pictures of all results anew and return their file names. Raises :class:`BenchError` if there are
    pictures and matplotlib is not installed."""
    pictures = {
        name: draw
        for saved in results
        if saved.bench in benchmarks
        for name, draw in benchmarks[saved.bench].pictures(saved.result, saved.key).items()
    }
    for name, draw in pictures.items():
        draw(folder / name)
    return list(pictures)


def tables_text(
    results: Sequence[SavedResult], benchmarks: Mapping[str, Benchmark], folder: Path = TABLES_PAGE.parent
) -> str:
    """Return the page of all tables, with a section for each result. ``folder``: the folder of its pictures."""
    head = (
        "# Tables of the benchmarks\n\nGenerated by `python -m bench docs` from `bench/results`; "
        "[benchmarks.md](../benchmarks.md) says what each benchmark measures."
    )
    return "\n\n".join((head, *(section(saved, benchmarks, folder) for saved in results))) + "\n"


def section(saved: SavedResult, benchmarks: Mapping[str, Benchmark], folder: Path) -> str:
    """Return the section of one result: the command, the table, the pictures that exist, the commit, and the machine.

    Raises :class:`BenchError` if the benchmark is gone or cannot read the result.
    """
    if saved.bench not in benchmarks:
        raise BenchError(f"{saved.key}.json: there is no benchmark {saved.bench!r}: remove the file")
    try:
        table = benchmarks[saved.bench].table(saved.result)
        pictures = benchmarks[saved.bench].pictures(saved.result, saved.key)
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"{saved.key}.json is of another version ({error!r}): run it again: {saved.command}"
        ) from error
    taken = f"Taken on {saved.date[:10]} in {saved.duration_secs:,.0f} s at commit {saved.commit[:8]}"
    versions = ", ".join(f"{name} {version}" for name, version in saved.versions.items())
    return "\n\n".join(
        (
            f"## {saved.key}",
            f"`{saved.command}`",
            table.strip(),
            *(f"![Curves of {name.removesuffix('.svg')}]({name})" for name in pictures if (folder / name).exists()),
            f"{taken}{_DIRTY if saved.dirty else ''}.",
            f"{machine_line(saved)} {versions}.",
        )
    )


def machine_line(saved: SavedResult) -> str:
    host = saved.machine
    return f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, {host['system']}."
