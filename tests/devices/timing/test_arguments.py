from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.protocol import TensorSpec
from devices.timing.arguments import all_finite, disagreement, make_inputs, poison

ARGS = (
    TensorSpec((4, 6), "float32"),
    TensorSpec((5,), "int64"),
    TensorSpec((3, 1), "bool"),
    TensorSpec((4,), "float16"),
)


@pytest.mark.parametrize("positive", [False, True])
def test_inputs_are_the_same_everywhere_and_of_the_right_type(positive: bool) -> None:
    first = make_inputs("task", ARGS, (3,), positive)
    second = make_inputs("task", ARGS, (3,), positive)
    for spec, a, b in zip(ARGS, first, second, strict=True):
        assert (a.shape, str(a.dtype)) == (spec.shape, spec.dtype)
        np.testing.assert_array_equal(a, b)
    assert not first[3].any()
    assert not np.array_equal(first[0], make_inputs("other", ARGS, (3,), positive)[0])


def test_floats_have_both_signs_or_are_positive() -> None:
    spec = (TensorSpec((1000,), "float32"),)
    (mixed,), (positive,) = make_inputs("t", spec, (), False), make_inputs("t", spec, (), True)
    assert -1.0 <= mixed.min() < -0.9 < 0.9 < mixed.max() < 1.0
    assert positive.min() >= 0.1
    assert positive.max() < 1.1


def test_integers_are_valid_indices_of_every_extent() -> None:
    table, indices = TensorSpec((3, 128), "float32"), TensorSpec((1, 500), "int32")
    values = make_inputs("t", (table, indices), (), False)[1]
    assert set(np.unique(values)) == {0, 1, 2}


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
