"""RoiAlign with a number of samples that follows from the region: against a plain loop over regions, bins, samples."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from devices.builds.executables import compile_host
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from tests.helpers.lowered_networks import CPU

Floats = npt.NDArray[np.float32]

REGIONS = np.asarray(
    [
        *([1, 1, 6, 6], [0, 0, 10, 8], [0.2, 0.3, 8.7, 3.9]),
        *([-5, -3, 30, 40], [-50, 2, -30, 8], [100, 100, 120, 130]),  # partly and wholly outside
        *([2.3, 1.1, 2.4, 1.2], [4, 4, 4, 4], [8, 1, 2, 7]),  # smaller than a pixel, empty, turned over
    ],
    np.float32,
)
IMAGES = np.asarray([0, 1, 0, 1, 0, 1, 0, 1, 0])


def _sampled(plane: Floats, y: float, x: float) -> float:
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = min(int(y), max(height - 2, 0)), min(int(x), max(width - 2, 0))
    down, right = y - top, x - left
    pair = [(1 - right) * plane[row, left] + right * plane[row, left + 1] for row in (top, top + 1)]
    return float((1 - down) * pair[0] + down * pair[1])


def _expected(data: Floats, bins: tuple[int, int], scale: float, half_pixel: bool) -> Floats:
    result = np.zeros((len(REGIONS), data.shape[1], *bins), np.float32)
    for at, (image, region) in enumerate(zip(IMAGES, REGIONS, strict=True)):
        left, top, right, bottom = region * np.float32(scale) - np.float32(0.5 * half_pixel)
        sizes = [bottom - top, right - left]
        if not half_pixel:
            sizes = [max(size, 1.0) for size in sizes]
        each = [size / count for size, count in zip(sizes, bins, strict=True)]
        counts = [math.ceil(extent) for extent in each]
        if min(counts) < 1:
            continue
        for channel, p, q in np.ndindex(*result.shape[1:]):
            samples = [
                _sampled(
                    data[image, channel],
                    top + (p + (row + 0.5) / counts[0]) * each[0],
                    left + (q + (column + 0.5) / counts[1]) * each[1],
                )
                for row, column in np.ndindex(*counts)
            ]
            result[at, channel, p, q] = np.mean(samples)
    return result


@pytest.mark.parametrize(("mode", "scale"), [("output_half_pixel", 1.0), ("half_pixel", 0.5), ("half_pixel", 0.0625)])
def test_the_number_of_samples_follows_from_the_region(mode: str, scale: float, tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((2, 2, 9, 11)).astype(np.float32)
    node = helper.make_node(
        "RoiAlign", ["x", "r", "b"], ["y"], coordinate_transformation_mode=mode, spatial_scale=scale,
        output_height=3, output_width=2,
    )  # fmt: skip
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, data.shape), value("r", TensorProto.FLOAT, REGIONS.shape)]
    outputs = [value("y", TensorProto.FLOAT, [len(REGIONS), 2, 3, 2])]
    graph = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(IMAGES, "b")])
    file = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9), str(file))
    network = load_network(file)
    [ours] = compile_host(import_network(network, CPU).module)(data, REGIONS)
    np.testing.assert_allclose(ours, _expected(data, (3, 2), scale, mode == "half_pixel"), atol=1e-5)
