"""Peak rates of the tensor cores of CUDA devices: NVIDIA's figures for each architecture, not measured.

The rates are for dense products of 16-bit floats with 16-bit sums, from the architecture papers. (On consumer cards
32-bit sums run at half the rate.) TVM uses WMMA instructions, with which a multiprocessor of compute capability 9.0
does not reach its rate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorCores:
    """The tensor cores of one multiprocessor."""

    count: int
    flop_per_cycle: int
    """Operations of all of them together in a clock cycle."""


_BY_CAPABILITY = {
    "7.0": TensorCores(8, 1024),  # V100: 125 TFLOP/s on 80 multiprocessors at 1.53 GHz
    "7.2": TensorCores(8, 1024),  # Xavier: 11 on 8 at 1.38 GHz
    "7.5": TensorCores(8, 1024),  # T4: 65 on 40 at 1.59 GHz
    "8.0": TensorCores(4, 2048),  # A100: 312 on 108 at 1.41 GHz
    "8.6": TensorCores(4, 1024),  # RTX 3090: 142 on 82 at 1.70 GHz
    "8.7": TensorCores(4, 2048),  # Orin: 42.5 on 16 at 1.3 GHz
    "8.9": TensorCores(4, 1024),  # RTX 4090: 330 on 128 at 2.52 GHz
    "9.0": TensorCores(4, 4096),  # H100: 989 on 132 at 1.83 GHz
    "12.0": TensorCores(4, 1024),  # RTX 5090: 419 on 170 at 2.41 GHz
}


def tensor_cores(capability: str) -> TensorCores:
    """Return the tensor cores of a compute capability (``"8.0"``); 0 and 0 if it has none or is not in the table."""
    return _BY_CAPABILITY.get(capability, TensorCores(0, 0))


def tensor_flops(cores: TensorCores, multiprocessors: int, hertz: float) -> float:
    """Return the FLOP/s of all tensor cores of a device at its highest clock."""
    return float(cores.flop_per_cycle * multiprocessors * hertz)
