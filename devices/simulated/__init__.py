"""Devices without a kernel: simulated ones, and recorded ones, which answer from a dataset."""
