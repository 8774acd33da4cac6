"""Attention in one kernel."""

GRANULE = "fleet_tune.attention_granule"
"""Annotation of the root block in a trace of a rewritten program: the rows of a granule."""


def uses_attention(trace: str) -> bool:
    """Return true if a trace (JSON text) is of a program that is rewritten to attention in one kernel."""
    return f'"{GRANULE}"' in trace
