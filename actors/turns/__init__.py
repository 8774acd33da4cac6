"""Turns on the devices that several runs of a cluster share; :mod:`policies.runs.cluster.turns` decides them."""
