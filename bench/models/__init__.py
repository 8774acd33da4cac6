"""Benchmarks of the cost models: how well they rank, what is transferred between tasks and device classes."""
