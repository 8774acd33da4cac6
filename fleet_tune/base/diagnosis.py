"""Results of a checkup."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """Weight of a diagnosis."""

    GOOD = "good"
    WARNING = "warning"  # runs work; they are slower, or their figures are worse
    PROBLEM = "problem"  # runs fail


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of one thing that runs depend on."""

    subject: str
    severity: Severity
    found: str
    """The state, in words."""
    next_step: str = ""
    """The next step; empty for a good diagnosis."""


def good(subject: str, found: str) -> Diagnosis:
    """Return a diagnosis that asks for nothing."""
    return Diagnosis(subject, Severity.GOOD, found)


def warning(subject: str, found: str, next_step: str) -> Diagnosis:
    """Return a diagnosis that makes runs slower or their figures worse."""
    return Diagnosis(subject, Severity.WARNING, found, next_step)


def problem(subject: str, found: str, next_step: str) -> Diagnosis:
    """Return a diagnosis that makes runs fail."""
    return Diagnosis(subject, Severity.PROBLEM, found, next_step)
