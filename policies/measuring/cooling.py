"""Rests of a device that heat slows down.

The probe corrects times for the clock of the chip, but memory keeps its own clock: a kernel ranks differently on a hot
chip than on a cool one. A rest lets the chip cool down. A device that is hot after every rest, in a case without a fan
say, is always hot: it goes on without rests, until it is found cool.
"""

from __future__ import annotations

FIRST_REST_SECS = 10.0
MOST_RESTS = 3
"""Most rests in a row, each twice as long as the one before."""


def rest_secs(hot_batches: int) -> float:
    """Return the seconds that a device rests if it was hot at the end of its last ``hot_batches`` batches."""
    return FIRST_REST_SECS * 2.0 ** (hot_batches - 1) if 0 < hot_batches <= MOST_RESTS else 0.0
