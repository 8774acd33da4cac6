"""Traces as the store keeps them: those of one sketch differ in their decisions alone, so that each is deflated with
the first one of its sketch as the dictionary. A trace of ten kilobytes takes a few hundred bytes."""

from __future__ import annotations

import zlib

from fleet_tune.errors import RecordStoreError

_WINDOW_BITS = -15  # a raw stream of deflate
_LEVEL = 6


def pack_trace(trace: str, like: bytes) -> bytes:
    """``trace`` in terms of ``like``, another trace as UTF-8."""
    deflating = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, 9, zdict=like)
    return deflating.compress(trace.encode()) + deflating.flush()


def unpack_trace(packed: bytes, like: bytes) -> str:
    """The trace that :func:`pack_trace` was given. Raises :class:`RecordStoreError` where that is not to be had."""
    inflating = zlib.decompressobj(_WINDOW_BITS, zdict=like)
    try:
        return (inflating.decompress(packed) + inflating.flush()).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise RecordStoreError(
            f"a trace cannot be read: {error}", "restore the database from a copy, or use another output folder"
        ) from error
