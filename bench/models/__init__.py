"""Benchmarks of the cost models: quality of their rankings, and transfer between tasks and device classes."""
