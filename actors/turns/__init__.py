"""Whose turn a device is that several runs of a cluster use; :mod:`policies.runs.cluster.turns` decides."""
