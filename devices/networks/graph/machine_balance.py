"""The cost of a copy in operations."""

from __future__ import annotations

WORTHWHILE = 32
"""Operations of convolutions for each byte that is moved, from which on a copy pays: between a single depthwise
convolution (2; 1.7 times as fast in its original layout) and a dense one (70 to 300)."""
