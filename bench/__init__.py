"""Benchmarks against what users would pick otherwise: ``python -m bench NAME --json``. Not part of the distribution.

Every figure of a peer is taken in the same run, on the same work and with as many threads as ours.
"""
