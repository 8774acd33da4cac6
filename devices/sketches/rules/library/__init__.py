"""Products and convolutions by a library's kernels."""

LIBRARY = "fleet_tune.library"
"""Annotation of the root block: name of the library that computes the main block."""
ROWS = "fleet_tune.library_rows"
"""Annotation of the root block: rows of the result that each call computes."""
COLUMNS = "fleet_tune.library_columns"
"""Annotation of the root block: columns of the result that each call computes."""


def uses_library(trace: str) -> bool:
    """Return true if a trace (JSON text) makes a program that calls a library."""
    return f'"{LIBRARY}"' in trace
