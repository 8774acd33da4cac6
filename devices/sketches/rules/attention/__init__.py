"""Attention in one kernel."""

GRANULE = "fleet_tune.attention_granule"
"""Annotation of the root block in the trace of a rewritten program: the number of rows of a granule."""


def uses_attention(trace: str) -> bool:
    """Return true if a trace (JSON text) applies to a program that is rewritten to attention in one kernel."""
    return f'"{GRANULE}"' in trace
