"""Operators that become one kernel, or none: attention, products of one input, views."""
