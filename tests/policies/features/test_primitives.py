"""The schedule primitives that TLP reads, written down by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Decision, Sketch, Tile
from policies.features.primitives import SHAPE, primitive_features

SPATIAL, REDUCTION, CHOICE, AT_LOOP, AT_ROOT, INLINED = np.eye(6).tolist()


def token(kind: list[float], numbers: list[float], extent: float = 0.0) -> list[float]:
    flagged = [each for number in numbers for each in (number, 1.0)]
    return [*kind, *flagged, *[0.0] * (10 - len(flagged)), extent]


def tokens(*rows: list[float]) -> np.ndarray:
    return np.array([*rows, *[[0.0] * 17] * (16 - len(rows))])


def test_a_matrix_product_by_hand(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    """i = 2 * 4 * 1 * 32, j = 1 * 1 * 16 * 16, k = 64 * 4, each of 256; unrolled up to the second of 0, 16, 64, 512."""
    matrix = np.array([[2, 4, 1, 32, 1, 1, 16, 16, 64, 4, 1], [1, 1, 1, 256, 1, 1, 1, 256, 1, 256, 0]])
    features = primitive_features(tiled, matrix, cpu)
    assert features.shape == (2, 16, 17) == (2, *SHAPE)
    assert features[0] == pytest.approx(
        tokens(
            token(SPATIAL, [1.0, 2.0, 0.0, 5.0], 8.0),
            token(SPATIAL, [0.0, 0.0, 4.0, 4.0], 8.0),
            token(REDUCTION, [6.0, 2.0], 8.0),
            token(CHOICE, [np.log2(17)]),
        )
    )
    assert features[1, 3] == pytest.approx(token(CHOICE, [0.0]))  # no unrolling is a number too


def test_places_are_primitives_of_three_kinds(undescribed: Sketch, cpu: DeviceAbstraction) -> None:
    """A tile of a sketch without statements is of no kind; of each candidate the place is another one."""
    matrix = np.array([[4, 2, 8, 1, place] for place in range(4)])
    features = primitive_features(undescribed, matrix, cpu)
    assert features[0, 0] == pytest.approx(token([0.0] * 6, [2.0, 1.0, 3.0], 6.0))
    places = [token(INLINED, []), token(AT_ROOT, []), token(AT_LOOP, [0.0]), token(AT_LOOP, [1.0])]
    assert features[:, 2] == pytest.approx(np.array(places))


def test_names_of_sketches_and_rules_are_left_out(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = np.array([[2, 4, 1, 32, 1, 1, 16, 16, 64, 4, 1]])
    other = dataclasses.replace(tiled, index=7, rule="another", trace_text="another")
    assert np.array_equal(primitive_features(other, matrix, cpu), primitive_features(tiled, matrix, cpu))


def test_long_schedules_are_cut(undescribed: Sketch, cpu: DeviceAbstraction) -> None:
    """Of 20 decisions the first 16, of 6 factors the outermost 5."""
    decisions: tuple[Decision, ...] = (Tile(64, 6, 64), *[Choice("unroll", (0, 16))] * 19)
    sketch = dataclasses.replace(undescribed, decisions=decisions)
    (features,) = primitive_features(sketch, np.array([[2, 1, 1, 1, 1, 32, *[0] * 19]]), cpu)
    assert features[0] == pytest.approx(token([0.0] * 6, [1.0, 0.0, 0.0, 0.0, 0.0], 6.0))
    assert features[1:] == pytest.approx(np.array([token(CHOICE, [0.0])] * 15))
