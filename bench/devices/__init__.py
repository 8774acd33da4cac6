"""Benchmarks of devices: what a measurement costs and takes, recovery from faults."""
