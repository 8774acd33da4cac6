"""The numbers of tiles that :func:`devices.sketches.dynamic.tiled_kernel.tiled_kernel` runs for a number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


def tile_counts(rows: int, sizes: Collection[int], overlap: int = 0) -> Counter[int]:
    """Return how many tiles of each size run for ``rows`` rows.

    Args:
        rows: the number of rows, at least that of the smallest tile.
        sizes: the number of rows of each tile.
        overlap: the most rows that a tile may compute again to avoid smaller tiles.
    """
    counts: Counter[int] = Counter()
    left = rows
    ordered = sorted(sizes, reverse=True)
    for size, smaller in zip(ordered, [*ordered[1:], 0], strict=True):
        # The fewest rows for which a tile of this size runs; the smallest tile runs for any number.
        fewest = max(smaller + 1, size - overlap) if smaller else 1
        is_last = fewest < size and size <= rows and left % size >= fewest
        counts[size] += left // size + is_last
        left = 0 if is_last else left % size
    return +counts
