"""Matrices of Winograd's convolutions, as exact fractions.

An output tile of ``m`` values of a convolution with ``r`` weights takes ``m + r - 1`` multiplications (S. Winograd,
1980; A. Lavin, S. Gray: Fast Algorithms for Convolutional Neural Networks, CVPR 2016, section 4):

    output = A^T [(G weights) * (B^T data)]

The matrices come from interpolating polynomials at ``m + r - 2`` points and infinity (Toom and Cook).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

Matrix = tuple[tuple[Fraction, ...], ...]

_POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))
"""Points to interpolate at. Rounding errors stay small if the points and their products are small numbers."""


@dataclass(frozen=True)
class Transforms:
    """The three matrices for ``m`` outputs of ``r`` weights, with ``n = m + r - 1``."""

    data: Matrix
    """``B^T``, (n, n)."""
    weight: Matrix
    """``G``, (n, r)."""
    output: Matrix
    """``A^T``, (m, n)."""

    @property
    def points(self) -> int:
        """``n``: multiplications of a tile in one dimension."""
        return len(self.data)


@cache
def transforms(outputs: int, weights: int) -> Transforms:
    """Return the matrices for tiles of ``outputs`` values of a convolution with ``weights`` weights. Raises ValueError
    if there are not enough points to interpolate at."""
    finite = outputs + weights - 2
    if finite > len(_POINTS):
        raise ValueError(f"no points for tiles of {outputs} outputs of {weights} weights")
    points = _POINTS[:finite]
    data: list[tuple[Fraction, ...]] = []
    weight: list[tuple[Fraction, ...]] = []
    for point in points:
        others = [each for each in points if each != point]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        data.append((*_with_roots(others), Fraction(0)))
        weight.append(tuple(point**power / scale for power in range(weights)))
    data.append(tuple(_with_roots(points)))
    weight.append((*[Fraction(0)] * (weights - 1), Fraction(1)))
    output = [(*(point**power for point in points), Fraction(int(power == outputs - 1))) for power in range(outputs)]
    return Transforms(tuple(data), tuple(weight), tuple(output))


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the polynomial with these roots, from the lowest power. The leading coefficient is
    1."""
    polynomial = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *polynomial]
        polynomial = [high - root * low for high, low in zip(shifted, [*polynomial, Fraction(0)], strict=True)]
    return polynomial
