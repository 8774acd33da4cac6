"""What a checkup finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """How much a finding matters."""

    GOOD = "good"
    WARNING = "warning"  # runs work; they are slower, or their figures are worse
    PROBLEM = "problem"  # runs fail


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one thing that runs depend on."""

    subject: str
    severity: Severity
    found: str
    """The state, in words."""
    next_step: str = ""
    """What to do about it; empty for a good one."""


def good(subject: str, found: str) -> Finding:
    """Return a finding that asks for nothing."""
    return Finding(subject, Severity.GOOD, found)


def warning(subject: str, found: str, next_step: str) -> Finding:
    """Return a finding that makes runs slower or their figures worse."""
    return Finding(subject, Severity.WARNING, found, next_step)


def problem(subject: str, found: str, next_step: str) -> Finding:
    """Return a finding that makes runs fail."""
    return Finding(subject, Severity.PROBLEM, found, next_step)
