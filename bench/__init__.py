"""Benchmarks against what users would pick otherwise: ``python -m bench NAME --json``. Not part of the distribution.

Every figure of a peer is taken in the same run, on the same work and with as many threads as ours.

A benchmark is one module of a room (``search``, ``models``, ``devices``, ``networks``,
``runs``) and is found by its
``BENCHMARK`` (:mod:`bench.benchmark`); ``..._process`` modules are the processes that they start, ``peers`` those of
what we compare with. ``data`` has the datasets, ``results`` the figures that the plots are drawn from.
"""
