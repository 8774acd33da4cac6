"""Benchmarks of devices: cost and overhead of a measurement, false improvements, recovery from faults."""
