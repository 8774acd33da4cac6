"""Expressions of Relax: the main function, calls, tensors and names of blocks."""
