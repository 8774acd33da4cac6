"""Benchmarks of the search on recorded candidates: the draft, trials by replay, and the time of a batch."""
