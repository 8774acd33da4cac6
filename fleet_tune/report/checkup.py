"""Findings of a checkup for people and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from fleet_tune.base.finding import Finding, Severity

SCHEMA = 1
_MARKS = {Severity.GOOD: "ok", Severity.WARNING: "warning", Severity.PROBLEM: "problem"}
_COLOURS = {Severity.GOOD: "green", Severity.WARNING: "yellow", Severity.PROBLEM: "red"}
_WIDTH = max(map(len, _MARKS.values()))


def render_finding(finding: Finding) -> Text:
    """One line, and a second one with what to do."""
    text = Text.assemble(
        (_MARKS[finding.severity].ljust(_WIDTH), _COLOURS[finding.severity]), f"  {finding.subject}: {finding.found}"
    )
    if finding.next_step:
        text.append(f"\n{' ' * _WIDTH}  -> {finding.next_step}")
    return text


def summary(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity, in words."""
    counts = Counter(each.severity for each in findings)
    words = [(Severity.PROBLEM, "problem"), (Severity.WARNING, "warning")]
    told = [f"{counts[kind]} {word}{'s' if counts[kind] > 1 else ''}" for kind, word in words if counts[kind]]
    return ", ".join(told) or "nothing to mend"


def findings_json(findings: Sequence[Finding]) -> str:
    """Return the findings as one line of JSON."""
    plain = {"schema": SCHEMA, "findings": [dataclasses.asdict(each) for each in findings]}
    return json.dumps(plain, ensure_ascii=False)
