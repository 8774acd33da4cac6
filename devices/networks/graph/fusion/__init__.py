"""Fusion of operators into one kernel, or into none: attention, products of one input, views."""
