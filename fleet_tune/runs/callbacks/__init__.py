"""Callbacks of a run, which accompany its steps: the shared store, the metrics, the fleet file."""
