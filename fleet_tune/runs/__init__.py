"""Whole runs: from a request to a compiled network, a dataset, or a trained cost model."""
