"""Schedule traces as plain JSON values."""

from __future__ import annotations

import json
from typing import Any

from tvm.s_tir import Trace
from tvm.tirx import FloatImm, IntImm


def instructions(trace: Trace) -> list[list[Any]]:
    """Return the instructions before post-processing, each as kind, inputs, attributes and outputs. Variables are given
    by their names."""
    steps: list[list[Any]] = _plain(trace.as_json(remove_postproc=True)[0])
    return steps


def open_text(trace: Trace) -> str:
    """Return the JSON text of the instructions before post-processing, without decisions. It is the same in every
    process."""
    return json.dumps(instructions(trace))


def full_text(trace: Trace) -> str:
    """Return the JSON text of the whole trace with its decisions, as a MetaSchedule record stores it."""
    return json.dumps(_plain(trace.as_json()))


def _plain(value: Any) -> Any:
    """Convert TVM's own integers and floats in a trace's JSON."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, IntImm):
        return int(value.value)
    if isinstance(value, FloatImm):
        return float(value.value)
    return value
