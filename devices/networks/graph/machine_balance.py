"""The cost of a copy in operations."""

from __future__ import annotations

WORTHWHILE = 32
"""A copy pays from this many operations of convolutions for each moved byte. The number lies between a single depthwise
convolution (2; 1.7 times as fast in its original layout) and a dense one (70 to 300)."""
