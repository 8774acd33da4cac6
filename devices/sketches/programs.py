"""The program that a trace applies to: the task's own, or one that a sketch rule has rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

from devices.sketches.rules.attention import GRANULE, uses_attention
from devices.sketches.rules.attention.pattern import attention_of
from devices.sketches.rules.attention.program import rewritten as attention_program
from devices.sketches.rules.library import uses_library
from devices.sketches.rules.overlapping_tiles import TILES, tiling_of, with_overlapping_tiles
from devices.sketches.rules.winograd import uses_winograd
from devices.sketches.rules.winograd.convolution import convolution_of
from devices.sketches.rules.winograd.program import rewritten
from devices.sketches.rules.winograd.rule import outputs_of


def is_rewritten(trace: str) -> bool:
    """Return true if a trace (JSON text) applies to a rewritten program, which TVM alone cannot make."""
    return uses_winograd(trace) or uses_attention(trace) or uses_library(trace) or f'"{TILES}"' in trace


def program_for(module: tvm.IRModule, steps: Sequence[Sequence[Any]]) -> tvm.IRModule:
    """Return the program that the instructions of a trace apply to. Raises ValueError if ``module`` cannot be rewritten
    to that program."""
    outputs, tiling = outputs_of(steps), tiling_of(steps)
    if outputs is not None:
        convolution = convolution_of(module)
        if convolution is None:
            raise ValueError("a trace of Winograd's algorithm, and the program is no convolution that it fits")
        return rewritten(convolution, outputs)
    if any(kind == "Annotate" and attributes[0] == GRANULE for kind, _, attributes, *_ in steps):
        found = attention_of(module)
        if found is None:
            raise ValueError("a trace of an attention, and the program is none")
        return attention_program(found)
    if tiling is not None:
        tiled = with_overlapping_tiles(module, tiling)
        if tiled is None:
            raise ValueError("a trace of overlapping tiles, and the program is no product with such an axis")
        return tiled
    return module
