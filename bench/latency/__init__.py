"""Latency of tuned networks and operators compared with frameworks."""
