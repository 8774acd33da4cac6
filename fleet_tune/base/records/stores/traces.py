"""Traces as the store keeps them. Traces of one sketch differ only in their decisions, so that each is deflated with
the first trace of its sketch as the dictionary. A trace of ten kilobytes takes a few hundred bytes."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

from fleet_tune.base.errors import UnreadableRecordError

_WINDOW_BITS = -15  # a raw stream of deflate
# Level 6 takes twice the time and saves a third of the size. A smaller memory is copied in less time, and finds as many
# matches.
_LEVEL, _MEMORY = 3, 5
_MOST_BYTES = 16 << 20  # of a trace: a damaged or malicious one may inflate to any size
_SKETCHES = 128  # whose dictionaries are kept in the form that deflate uses, 140 kB each


@lru_cache(_SKETCHES)
def _deflating(like: bytes) -> Any:
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY, zdict=like)


def pack_trace(trace: str, like: bytes) -> bytes:
    """Return ``trace``, deflated with the dictionary ``like``, another trace as UTF-8."""
    deflating = _deflating(like).copy()  # reading a dictionary takes longer than deflating a trace with it
    packed: bytes = deflating.compress(trace.encode()) + deflating.flush()
    return packed


def unpack_trace(packed: bytes, like: bytes, what: str) -> str:
    """Return the trace that :func:`pack_trace` was given. ``what``: the name of its record. Raise
    :class:`UnreadableRecordError` if it cannot be read."""
    try:
        inflating = zlib.decompressobj(_WINDOW_BITS, zdict=like)
        trace = inflating.decompress(packed, _MOST_BYTES).decode()
        if not inflating.eof:
            raise zlib.error("its end is lacking" if not inflating.unconsumed_tail else "it is too large")
    except (zlib.error, UnicodeDecodeError, TypeError) as error:  # TypeError: what is stored is no bytes
        raise UnreadableRecordError(
            f"{what} cannot be read: its trace: {error}",
            "restore the database from a copy, or use another output folder",
        ) from error
    return trace
