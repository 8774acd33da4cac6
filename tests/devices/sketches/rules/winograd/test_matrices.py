"""Winograd's matrices: against those of the paper, and exactly for any numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.sketches.rules.winograd.matrices import Matrix, transforms

SIZES = [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5)]


def _numbers(matrix: Matrix) -> list[list[float]]:
    return [[float(each) for each in row] for row in matrix]


def test_the_smallest_are_those_of_the_paper_up_to_signs() -> None:
    # Lavin and Gray, section 4.1: F(2, 3). Their first and last rows of B^T and G have other signs in pairs.
    small = transforms(2, 3)
    assert _numbers(small.data) == [[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
    assert _numbers(small.weight) == [[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    assert _numbers(small.output) == [[1, 1, 1, 0], [0, 1, -1, 1]]


@pytest.mark.parametrize(("outputs", "weights"), SIZES)
@given(st.data())
def test_they_convolve_exactly(outputs: int, weights: int, data: st.DataObject) -> None:
    whole = st.integers(-1000, 1000)
    points = outputs + weights - 1
    values = data.draw(st.lists(whole, min_size=points, max_size=points))
    kernel = data.draw(st.lists(whole, min_size=weights, max_size=weights))

    def times(matrix: Matrix, vector: list[int] | list[Fraction]) -> list[Fraction]:
        return [sum((f * v for f, v in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    matrices = transforms(outputs, weights)
    products = [a * b for a, b in zip(times(matrices.weight, kernel), times(matrices.data, values), strict=True)]
    expected = [sum(values[at + k] * kernel[k] for k in range(weights)) for at in range(outputs)]
    assert times(matrices.output, products) == expected


def test_tiles_beyond_the_points_are_refused() -> None:
    with pytest.raises(ValueError, match="no points for tiles of 8 outputs of 3 weights"):
        transforms(8, 3)
