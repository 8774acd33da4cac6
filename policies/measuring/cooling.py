"""Rests of a device that heat slows down.

The probe corrects times for the clock, but memory keeps its own: a kernel that is measured while the chip is hot ranks
otherwise than in a cool one. A rest lets it cool down. A device that is hot after every rest, in a case without a fan,
is always so: it goes on without rests, until it is found cool.
"""

from __future__ import annotations

FIRST_REST_SECS = 10.0
MOST_RESTS = 3
"""Rests in turn, each twice as long as the one before."""


def rest_secs(hot_batches: int) -> float:
    """Return the seconds that a device rests which was hot at the end of its last ``hot_batches`` batches."""
    return FIRST_REST_SECS * 2.0 ** (hot_batches - 1) if 0 < hot_batches <= MOST_RESTS else 0.0
