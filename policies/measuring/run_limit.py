"""The timeout of a candidate's measurement."""

from __future__ import annotations

LOSS = 100.0
"""A candidate that is up to so many times slower than the device's peak is run to its end, however much it
computes."""


def run_limit(candidate_secs: float, floor_secs: float) -> float:
    """Return the timeout in seconds. ``candidate_secs``: from the device's entry in the fleet file; ``floor_secs``:
    seconds of the task's operations at the peak that was measured on the device. Most candidates take a small part of
    the timeout. Once there is an incumbent, the timeout follows from its cost
    (:func:`policies.measuring.adaptive_stopping.following`)."""
    return candidate_secs + LOSS * floor_secs
