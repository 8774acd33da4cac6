"""Passes over kernels besides those of TVM."""
