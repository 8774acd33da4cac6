"""Shapes of networks that are only known when they run: dimensions, sums of them, and parts of their range."""
