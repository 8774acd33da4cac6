"""Benchmarks of drafts, by the quality of the candidates that they keep, and counts of sketches."""
