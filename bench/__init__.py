"""Benchmarks against the tools that users could choose instead: ``python -m bench NAME --json``. Not distributed.

Every figure of a peer is taken in the same run, on the same work and with as many threads as ours.

A benchmark is one module, found by its ``BENCHMARK`` (:mod:`bench.benchmark`), in ``search``, ``drafts``, ``models``,
``replay``, ``devices``, ``latency``, ``tuning``, ``runs`` or ``gpu``. Modules called ``..._process`` are the processes
that benchmarks start. ``peers`` has the tools and frameworks that we compare with, ``networks`` the networks and
operators, ``models/laboratory`` cost models that no method uses, ``data`` the datasets. ``results`` has one file for
each result (:mod:`bench.saved_result`); ``python -m bench docs`` writes the pages from these files.
"""
