"""Benchmarks of whole tuning runs: trials a minute, the first record, and the tuned network's latency."""
