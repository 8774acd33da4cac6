"""Benchmarks of drafts: how good the kept candidates are; and counts of sketches."""
