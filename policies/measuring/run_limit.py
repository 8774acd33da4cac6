"""The timeout of a candidate's measurement."""

from __future__ import annotations

LOSS = 100.0
"""How many times slower than the device's peak a candidate may be that is run to its end, however much it computes."""


def run_limit(candidate_secs: float, floor_secs: float) -> float:
    """Seconds. ``candidate_secs``: of the device's entry in the fleet file; ``floor_secs``: what the operations of the
    task take at the peak that was measured on the device. Most candidates take a small part of it: once there is an
    incumbent, the limit follows that (:func:`policies.measuring.adaptive_stopping.following`)."""
    return candidate_secs + LOSS * floor_secs
