"""The twelve convolutions of ResNet-18 by their names in AutoTVM's table 1, and the product of its figures 8 and 9.

This module has plain values. The torch modules are in :mod:`bench.networks.resnet18_operators`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet_tune.base.domain import Workload


@dataclass(frozen=True)
class Convolution:
    """A row of the table: batch 1, square image and kernel. Padding is half the kernel, as in ResNet-18."""

    size: int
    """Height and width of the input."""
    inputs: int
    """Input channels."""
    outputs: int
    """Output channels."""
    kernel: int
    stride: int

    @property
    def output_size(self) -> int:
        """Height and width of the output."""
        return -(-self.size // self.stride)

    @property
    def output_shape(self) -> str:
        """Shape of the output as in names of workloads, channels last."""
        return f"{self.output_size}x{self.output_size}x{self.outputs}"

    @property
    def flop(self) -> int:
        """Floating-point operations, two for each multiply-add."""
        return 2 * self.output_size**2 * self.outputs * self.inputs * self.kernel**2


CONVOLUTIONS: dict[str, Convolution] = {
    "C1": Convolution(224, 3, 64, 7, 2),
    "C2": Convolution(56, 64, 64, 3, 1),
    "C3": Convolution(56, 64, 64, 1, 1),
    "C4": Convolution(56, 64, 128, 3, 2),
    "C5": Convolution(56, 64, 128, 1, 2),
    "C6": Convolution(28, 128, 128, 3, 1),
    "C7": Convolution(28, 128, 256, 3, 2),
    "C8": Convolution(28, 128, 256, 1, 2),
    "C9": Convolution(14, 256, 256, 3, 1),
    "C10": Convolution(14, 256, 512, 3, 2),
    "C11": Convolution(14, 256, 512, 1, 2),
    "C12": Convolution(7, 512, 512, 3, 1),
}
"""Table 1 of AutoTVM."""
PRODUCT = 1024
"""Rows and columns of each matrix of the product, Matmul-1024."""
SOURCE = ("C1", "C2", "C3", "C4", "C5", "C6")
"""The source domain of figure 8."""
TARGETS = ("C7", "C8", "C9", f"Matmul-{PRODUCT}")
"""Its target workloads."""
_SHAPED = re.compile(r"(conv2d|matmul) ([\dx]+)(#\d+)?")
_NEAR = 0.05


def name_of(workload: Workload) -> str | None:
    """Return the paper's name of a recorded workload with the same operator, output shape and (within 5%) number of
    operations; None if there is none. A workload with a bias or a ReLU has none."""
    found = _SHAPED.fullmatch(workload.name.removeprefix("fused_"))
    if found is None:
        return None
    operator, shape = found[1], found[2]
    flops: dict[str, int] = {}
    if operator == "conv2d":
        flops = {name: row.flop for name, row in CONVOLUTIONS.items() if shape == row.output_shape}
    elif shape == f"{PRODUCT}x{PRODUCT}":
        flops = {f"Matmul-{PRODUCT}": 2 * PRODUCT**3}
    return next((name for name, flop in flops.items() if abs(workload.flop - flop) < _NEAR * flop), None)
