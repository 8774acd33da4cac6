"""Features in units of what they vary by over the space of a task."""

from __future__ import annotations

import numpy as np

from policies.features.standard import APART, FARTHEST, Standardisation


def test_features_are_centred_scaled_bounded_and_finite() -> None:
    standard = Standardisation(np.array([1.0, 0.0], np.float32), np.array([2.0, 0.5], np.float32), 4.0)
    joint = np.array([[3.0, 0.25, 1.0, 0.0], [np.nan, 99.0, 0.0, 1.0]], dtype=np.float32)
    # (3 - 1) / 2 = 1 and 0.25 / 0.5 = 0.5, each over sqrt(4); a missing one is the centre, a far one bounded.
    expected = [[0.5, 0.25, APART, 0.0], [0.0, FARTHEST / 2, 0.0, APART]]
    assert np.allclose(standard(joint), expected)
