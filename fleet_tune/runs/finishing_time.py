"""The expected time between the end of a run's time budget and that of its command."""

from __future__ import annotations

SPARE_SHARE = 0.1
"""Share of a run's time that choosing between records by their time in the network, and waiting for a quiet host, may
take after it."""
_FIXED_SECS = 12.0
"""Start of the compiler's process, and the timing of the network."""
_CHECKS = 2.5
"""Compiling the tuned network, in times of the check of the untuned one, which is optimised less."""


def finishing_secs(budget_secs: float, check_secs: float) -> float:
    """Return the expected seconds. ``check_secs``: what comparing the untuned network with its framework took."""
    return _FIXED_SECS + _CHECKS * check_secs + SPARE_SHARE * budget_secs
