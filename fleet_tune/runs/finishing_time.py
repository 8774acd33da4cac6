"""The expected time from the end of a run's time budget to the end of its command."""

from __future__ import annotations

SPARE_SHARE = 0.1
"""Time that two steps after a run may take, as a share of the run's time: the choice between records by their time in
the network, and waits for a quiet host."""
_FIXED_SECS = 12.0
"""Seconds to start the compiler's process and to time the network."""
_CHECKS = 2.5
"""Time to compile the tuned network, as a multiple of the time to check the untuned one, which is optimised less."""


def finishing_secs(budget_secs: float, check_secs: float) -> float:
    """Return the expected seconds. ``check_secs``: seconds that the check of the untuned network took."""
    return _FIXED_SECS + _CHECKS * check_secs + SPARE_SHARE * budget_secs
