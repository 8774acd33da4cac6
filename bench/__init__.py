"""Benchmarks against what users would pick otherwise: ``python -m bench NAME --json``. Not part of the distribution.

Every figure of a peer is taken in the same run, on the same work and with as many threads as ours.

A benchmark is one module of ``search``, ``models``, ``devices``, ``networks`` or ``runs``, found by its ``BENCHMARK``
(:mod:`bench.benchmark`). Modules called ``..._process`` are the processes that benchmarks start; ``peers`` has the
tools and frameworks that we compare with; ``models/laboratory`` has cost models that no method uses. ``data`` has the
datasets, ``results`` one file for each result (:mod:`bench.saved_result`), from which ``python -m bench docs`` writes
the pages.
"""
