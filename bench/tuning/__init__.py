"""Benchmarks of whole tuning runs: trials a minute, time to the first record, time to the peer's latency."""
