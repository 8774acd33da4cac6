"""Constant folding, and values that are one number."""
