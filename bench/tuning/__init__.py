"""Benchmarks of whole tuning runs: trials a minute, the first record, time to the peers' latency."""
