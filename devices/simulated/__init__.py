"""Devices without hardware: simulated ones, and recorded ones that answer from a dataset."""
