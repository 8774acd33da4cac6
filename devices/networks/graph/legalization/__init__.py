"""Operators that TVM lowers badly or not at all, as kernels: one module for each subject."""
