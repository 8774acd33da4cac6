"""Convolutions by Winograd's algorithm."""

OUTPUTS = "fleet_tune.winograd_outputs"
"""Annotation of the root block in a trace of a rewritten program: the outputs of a tile in one dimension."""


def uses_winograd(trace: str) -> bool:
    """Return true if a trace (JSON text) is of a program that is rewritten to Winograd's algorithm. NaN and infinities
    reach all outputs of a tile there."""
    return f'"{OUTPUTS}"' in trace
