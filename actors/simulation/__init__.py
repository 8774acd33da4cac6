"""Whole runs with simulated devices: the runtime is real, what it measures is not."""
