"""The monotone map from scores to log seconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from policies.cost_models.monotone import LEAST_SLOPE, MonotoneMap


def test_map_by_hand() -> None:
    # Four records, a bin each; the second and third are out of order and pool to (1.5, 3).
    fitted = MonotoneMap.fit(np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 4.0, 2.0, 6.0]))
    assert fitted.at.tolist() == [0.0, 1.5, 4.0]
    assert fitted.values.tolist() == [1.0, 3.0, 6.0]
    # Least squares: centred scores -1.75, -0.75, 0.25, 2.25; 35/4 of squares; 9.25 of products.
    assert fitted.slope == pytest.approx(9.25 / 8.75)
    assert fitted(np.array([0.75, 2.75])).tolist() == pytest.approx([2.0, 4.5])
    assert fitted(np.array([-1.0, 5.0])).tolist() == pytest.approx([1.0 - 9.25 / 8.75, 6.0 + 9.25 / 8.75])


def test_scores_that_say_nothing() -> None:
    for logs in (np.array([3.0, 2.0, 1.0]), np.full(3, 2.0)):
        fitted = MonotoneMap.fit(np.array([0.0, 1.0, 2.0]), logs)
        assert fitted.values.tolist() == [2.0]
        assert fitted(np.array([1.0, 2.0])).tolist() == pytest.approx([2.0, 2.0 + LEAST_SLOPE])
    assert MonotoneMap.fit(np.zeros(3), np.array([1.0, 2.0, 6.0]))(np.zeros(1)).tolist() == pytest.approx([3.0])
    assert MonotoneMap.fit(np.ones(1), np.ones(1))(np.ones(1)).tolist() == [1.0]
    with pytest.raises(ValueError, match="cannot fit"):
        MonotoneMap.fit(np.empty(0), np.empty(0))
    with pytest.raises(ValueError, match="cannot fit"):
        MonotoneMap.fit(np.ones(2), np.ones(3))


_VALUES = st.floats(-100, 100, width=32).map(lambda value: round(value, 3))


@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(arrays(float, n, elements=_VALUES), arrays(float, n, elements=_VALUES))
    )
)
def test_map_never_reverses_the_order(records: tuple[np.ndarray, np.ndarray]) -> None:
    fitted = MonotoneMap.fit(*records)
    scores = np.linspace(-150, 150, 301)
    assert (np.diff(fitted(scores)) > 0).all()
