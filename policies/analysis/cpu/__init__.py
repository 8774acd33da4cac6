"""Analytic models of candidates on a CPU: :mod:`policies.analysis.cpu.model`, for statements that only move data
:mod:`policies.analysis.cpu.moves`, for row-wise kernels :mod:`policies.analysis.cpu.row_wise`."""
