from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.client.checking import TOLERANCES, all_finite, disagreement
from devices.protocol import TensorSpec
from devices.timing.arguments import FLOATS, make_inputs, poison


def test_every_float_type_has_its_tolerance() -> None:
    assert tuple(TOLERANCES) == FLOATS


def test_agreement_is_relative_to_the_largest_value() -> None:
    oracle = np.array([100.0, 0.001], np.float32)
    assert disagreement([oracle], [oracle + np.float32(0.05)]) == ""
    assert disagreement([oracle], [oracle + np.float32(0.2)]) == ("largest difference 0.2, largest oracle value 100")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_agree_in_the_same_places_only(value: float) -> None:
    special, plain = np.array([1.0, value], np.float32), np.array([1.0, 2.0], np.float32)
    assert disagreement([special], [special.copy()]) == ""
    assert "NaN or infinite" in disagreement([special], [plain])
    assert "NaN or infinite" in disagreement([plain], [special])
    assert "NaN or infinite" in disagreement([np.array([np.inf, 1], np.float32)], [np.array([-np.inf, 1], np.float32)])


def test_integers_must_be_equal() -> None:
    assert disagreement([np.array([1, 2])], [np.array([1, 2])]) == ""
    assert disagreement([np.array([1, 2])], [np.array([1, 3])]) == "1 of 2 values differ"


def test_the_wrong_output_of_several_is_named() -> None:
    one, two = np.ones(2, np.float32), np.zeros(2, np.float32)
    assert disagreement([one, one], [one, two]).startswith("output 1: ")


def test_another_shape_or_type_disagrees() -> None:
    assert "instead of" in disagreement([np.ones(2, np.float32)], [np.ones(3, np.float32)])
    assert "instead of" in disagreement([np.ones(2, np.float32)], [np.ones(2, np.float64)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int32"])
def test_what_is_left_unwritten_disagrees(dtype: str) -> None:
    spec = TensorSpec((7,), dtype)
    (written,) = make_inputs("t", (spec,), (), False)
    assert disagreement([written], [poison(spec)]) != ""


def test_all_finite_ignores_integers() -> None:
    assert all_finite([np.array([1.0], np.float32), np.array([3])])
    assert not all_finite([np.array([np.nan], np.float32)])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
def test_equal_arrays_agree(values: list[float]) -> None:
    array = np.array(values, np.float32)
    assert disagreement([array], [array.copy()]) == ""
