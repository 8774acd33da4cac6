"""Whole runs with simulated devices: the runtime is real, the measurements are not."""
