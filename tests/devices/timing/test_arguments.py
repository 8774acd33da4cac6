from __future__ import annotations

import numpy as np
import pytest

from devices.protocol import TensorSpec
from devices.timing.arguments import make_inputs

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
