"""Workloads of AutoTVM's figures 4 to 9 and 13 to 16: C1 to C12 of ResNet-18 (its table 1), and Matmul-1024.

``fleet-tune dataset collect bench/networks/resnet18_operators.py:operators --per-task 1000 --out DIR`` records random
schedules of each workload. Data is channels-last, weights are constants, and there is neither bias nor ReLU.
"""

from __future__ import annotations

from torch import nn

from bench.networks.resnet18_table import CONVOLUTIONS, PRODUCT, Convolution
from examples.workloads import Branches, ConvolutionChannelsLast, Example, Matmul, example


def _convolution(of: Convolution) -> ConvolutionChannelsLast:
    """Channels-last, so that no transpose becomes a task."""
    return ConvolutionChannelsLast(nn.Conv2d(of.inputs, of.outputs, of.kernel, of.stride, of.kernel // 2, bias=False))


def operators() -> Example:
    """The twelve convolutions and the product, as independent branches of one network."""
    rows = list(CONVOLUTIONS.values())
    shapes = [(1, row.size, row.size, row.inputs) for row in rows]
    return example(
        lambda: Branches(*((_convolution(row), 1) for row in rows), (Matmul(), 2)),
        *shapes,
        (PRODUCT, PRODUCT),
        (PRODUCT, PRODUCT),
    )
