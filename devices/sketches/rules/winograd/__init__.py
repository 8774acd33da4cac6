"""Convolutions by Winograd's algorithm."""

OUTPUTS = "fleet_tune.winograd_outputs"
"""Annotation of the root block in the trace of a rewritten program: the outputs of a tile in one dimension."""


def uses_winograd(trace: str) -> bool:
    """Return true if a trace (JSON text) applies to a program that is rewritten to Winograd's algorithm. In such a
    program a NaN or infinity spreads to all outputs of its tile."""
    return f'"{OUTPUTS}"' in trace
