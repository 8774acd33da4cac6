"""The analytic model of a candidate on a CPU; :mod:`policies.analysis.cpu.model` is its whole."""
