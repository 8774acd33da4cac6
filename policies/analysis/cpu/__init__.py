"""The analytic model of a candidate on a CPU: :mod:`policies.analysis.cpu.model` is its whole. Row-wise kernels have a
model of their own, :mod:`policies.analysis.cpu.row_wise`."""
