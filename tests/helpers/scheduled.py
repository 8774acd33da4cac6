"""Scheduled programs, run on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tvm

from devices.sketches.spaces import Scheduled
from devices.targets import parse_target


def run(scheduled: Scheduled, inputs: Sequence[npt.NDArray[Any]], target: str) -> list[npt.NDArray[Any]]:
    """Build a program for a canonical target of this machine; its outputs. Constant weights are packed first."""
    library = tvm.tirx.build(scheduled.module, target=parse_target(target))
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    for index in scheduled.packed:
        packed = tvm.runtime.empty(scheduled.args[index].shape, scheduled.args[index].dtype)
        library[f"pack_{index}"](tensors[index], packed)
        tensors[index] = packed
    library["main"](*tensors)
    return [tensors[index].numpy() for index in scheduled.outputs]
