"""Convolutions of images that are read as they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax import transform

from devices.networks.graph.legalization.image_convolutions import read_images_as_given
from devices.networks.graph.legalization.operators import LEGALIZED

GENERATOR = np.random.default_rng(5)


def _module(
    channels: int, weights: Any, padding: tuple[int, ...], stride: tuple[int, int], dilation: int, twice: bool = False
) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, channels, 9, 11), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            last = builder.emit(relax.op.permute_dims(x, [0, 2, 3, 1]))
            found = builder.emit(
                relax.op.nn.conv2d(
                    last,
                    relax.const(weights),
                    strides=stride,
                    padding=padding,
                    dilation=(dilation, dilation),
                    data_layout="NHWC",
                    kernel_layout="HWIO",
                )
            )
            outputs = [found, builder.emit(relax.op.negative(last))] if twice else [found]
            output = builder.emit_output(relax.Tuple(outputs))
        builder.emit_func_output(output)
    return builder.get()


def _operators(module: Any) -> list[str]:
    found: list[str] = []
    relax.analysis.post_order_visit(
        module["main"], lambda each: found.append(each.op.name) if isinstance(each, Call) else None
    )
    return found


@pytest.mark.parametrize(
    ("channels", "padding", "stride", "dilation"),
    [(3, (1, 1, 1, 1), (2, 2), 1), (1, (0, 2, 1, 0), (1, 3), 1), (4, (2, 2, 2, 2), (1, 1), 2)],
)
def test_it_computes_what_torch_does(
    channels: int, padding: tuple[int, int, int, int], stride: tuple[int, int], dilation: int
) -> None:
    weights = GENERATOR.standard_normal((3, 2, channels, 5)).astype(np.float32)
    module = transform.CanonicalizeBindings()(_module(channels, weights, padding, stride, dilation))
    read = transform.DeadCodeElimination(["main"])(read_images_as_given(module))
    assert _operators(read) == ["relax.nn.conv2d"]
    lowered = transform.LegalizeOps(LEGALIZED)(read)
    built = relax.VirtualMachine(tvm.compile(lowered, "llvm"), tvm.cpu())
    image = GENERATOR.standard_normal((2, channels, 9, 11)).astype(np.float32)
    (found,) = built["main"](tvm.runtime.tensor(image))
    top, left, bottom, right = padding
    padded = torch.nn.functional.pad(torch.from_numpy(image), (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(
        padded, torch.from_numpy(weights).permute(3, 2, 0, 1), stride=stride, dilation=dilation
    )
    np.testing.assert_allclose(found.numpy(), expected.permute(0, 2, 3, 1).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("channels", "twice"), [(5, False), (3, True)])
def test_many_channels_and_images_that_others_read_are_transposed(channels: int, twice: bool) -> None:
    weights = GENERATOR.standard_normal((3, 2, channels, 5)).astype(np.float32)
    module = _module(channels, weights, (0, 0, 0, 0), (1, 1), 1, twice)
    assert "relax.permute_dims" in _operators(transform.DeadCodeElimination(["main"])(read_images_as_given(module)))
