"""Latency of tuned networks and operators beside the frameworks'."""
