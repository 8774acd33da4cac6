"""Operators that TVM lowers badly or not at all, written as kernels here: one module for each subject."""
