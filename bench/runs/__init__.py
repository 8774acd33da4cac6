"""Benchmarks of the runtime: busy devices, durable records, failures, monitoring, and memory."""
