"""Parts that a run skips, in lines for people."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_tune.base.results import SkippedPart
from fleet_tune.report.words import named

_LINES = 8
_ORDER = ("check", "extent", "output", "record", "rewrite", "product", "task", "sketch", "description")


def skipped_lines(left_out: Sequence[SkippedPart]) -> list[str]:
    """Return a line for each reason. Reasons that concern the whole network come first, then those of whole tasks. Of
    many lines, return the first ones and the number of the others."""
    groups: dict[tuple[str, str, str], list[SkippedPart]] = {}
    for each in sorted(left_out, key=lambda each: _ORDER.index(each.what)):
        groups.setdefault((each.what, each.rule, each.reason), []).append(each)
    lines = [_line(what, rule, reason, members) for (what, rule, reason), members in groups.items()]
    return (
        lines if len(lines) <= _LINES else [*lines[: _LINES - 1], f"and {len(lines) - _LINES + 1} more lines (--json)"]
    )


def _line(what: str, rule: str, reason: str, members: Sequence[SkippedPart]) -> str:
    names = list(dict.fromkeys(each.task for each in members))
    of = named(names)
    if what == "check":
        return f"the untuned network was not compared with its framework: {reason}"
    if what in ("extent", "output"):
        return reason
    if what == "record":
        return f"records that cannot be read are set aside: {reason}"
    if what == "rewrite":
        return f"the network may be slower than it could be: {reason}"
    count = len(members)
    if what == "product":
        return f"{count} {'product stays' if count == 1 else 'products stay'} in floats: {of}: {reason}"
    if what == "task":
        return f"{count} {'task stays' if count == 1 else 'tasks stay'} untuned: {of}: {reason}"
    sketches = f"{count} {'sketch' if count == 1 else 'sketches'} ({rule}) of {of}"
    return f"{sketches}: {reason}" if what == "sketch" else f"{sketches}, searched by decisions alone: {reason}"
