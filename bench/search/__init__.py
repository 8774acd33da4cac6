"""Benchmarks of whole search methods: comparisons, ablations, and the time that a search takes."""
