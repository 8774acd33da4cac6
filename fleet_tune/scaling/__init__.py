"""Measures how a fleet's throughput grows with its devices, simulated or real."""
