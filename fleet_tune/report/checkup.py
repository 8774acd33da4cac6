"""Diagnoses of a checkup for people and as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from fleet_tune.base.diagnosis import Diagnosis, Severity
from fleet_tune.report.json_output import json_line

_MARKS = {Severity.GOOD: "ok", Severity.WARNING: "warning", Severity.PROBLEM: "problem"}
_COLOURS = {Severity.GOOD: "green", Severity.WARNING: "yellow", Severity.PROBLEM: "red"}
_WIDTH = max(map(len, _MARKS.values()))


def render_diagnosis(diagnosis: Diagnosis) -> Text:
    """Return the diagnosis in one line, with the next step, if any, in a second line."""
    text = Text.assemble(
        (_MARKS[diagnosis.severity].ljust(_WIDTH), _COLOURS[diagnosis.severity]),
        f"  {diagnosis.subject}: {diagnosis.found}",
    )
    if diagnosis.next_step:
        text.append(f"\n{' ' * _WIDTH}  -> {diagnosis.next_step}")
    return text


def summary(diagnoses: Sequence[Diagnosis]) -> str:
    """Return how many diagnoses there are of each severity, in words."""
    counts = Counter(each.severity for each in diagnoses)
    words = [(Severity.PROBLEM, "problem"), (Severity.WARNING, "warning")]
    told = [f"{counts[kind]} {word}{'s' if counts[kind] > 1 else ''}" for kind, word in words if counts[kind]]
    return ", ".join(told) or "nothing to mend"


def diagnoses_json(diagnoses: Sequence[Diagnosis]) -> str:
    """Return the diagnoses as one line of JSON."""
    return json_line({"diagnoses": [dataclasses.asdict(each) for each in diagnoses]})
