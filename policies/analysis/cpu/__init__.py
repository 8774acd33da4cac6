"""Analytic models of candidates on a CPU: :mod:`policies.analysis.cpu.model` for statements that compute,
:mod:`policies.analysis.cpu.moves` for those that only move data, :mod:`policies.analysis.cpu.row_wise` for row-wise
kernels."""
