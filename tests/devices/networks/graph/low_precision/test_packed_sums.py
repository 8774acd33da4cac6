"""Weights of which several are held in one number, and the windows of convolutions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from devices.networks.graph.low_precision.packed_sums import Window, packed

LAYOUTS = {1: ("NWC", "WIO"), 2: ("NHWC", "HWIO"), 3: ("NDHWC", "DHWIO")}


def convolution(rank: int, data_layout: str, kernel_layout: str) -> Any:
    """A call with as many spatial axes, and with padding at the end alone."""
    shape = dict(zip(data_layout, (1, *[9] * rank, 4), strict=True)) | {"N": 1, "C": 4}
    kernel = dict.fromkeys(kernel_layout, 3) | {"I": 2, "O": 8}
    types = ([shape.get(axis, 9) for axis in data_layout], [kernel[axis] for axis in kernel_layout])
    operands = [relax.Var(name, relax.TensorType(each, "float32")) for name, each in zip("xw", types, strict=True)]
    layouts = {"data_layout": data_layout, "kernel_layout": kernel_layout}
    operator = getattr(relax.op.nn, f"conv{rank}d")
    return operator(*operands, 2, [0] * rank + [1] * rank, 3, 2, **layouts)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_window_of_a_convolution(rank: int) -> None:
    window = Window.of(convolution(rank, *LAYOUTS[rank]))
    assert window == Window((2,) * rank, (0,) * rank, (1,) * rank, (3,) * rank, 2)
    assert window.is_padded


@pytest.mark.parametrize("layouts", [("NCHW", "OIHW"), ("NHWC", "OHWI"), ("NCHW", "HWIO")])
def test_a_convolution_that_is_not_channels_last_has_none(layouts: tuple[str, str]) -> None:
    assert Window.of(convolution(2, *layouts)) is None


@pytest.mark.parametrize(("dtype", "terms"), [("<i1", 4), ("<i2", 2), (ml_dtypes.bfloat16, 2)])
@pytest.mark.parametrize("count", [8, 5])
def test_weights_are_held_together(dtype: Any, terms: int, count: int) -> None:
    weights = np.random.default_rng(0).integers(-100, 100, (3, count, 7)).astype(dtype)
    numbers = packed(weights, terms)
    groups = -(-count // terms)
    assert numbers.dtype == np.int32
    assert numbers.shape == (3, groups, 7)
    apart = numbers[..., None].view(dtype).swapaxes(-1, -2).reshape(3, groups * terms, 7)
    np.testing.assert_array_equal(apart[:, :count], weights)
    assert not apart[:, count:].any()
