"""Companions of a run, which go along with its steps: the shared store, the metrics, the fleet file."""
