"""Companions of a run: what goes along with its steps and is none of them, such as the shared store and the metrics."""
