"""Sketch rule "onednn": products and convolutions by oneDNN's kernels (CPU).

Only targets that name the library (TVM's attribute ``libs``) have such sketches. The decisions are the rows and the
columns of the result that one call computes; :mod:`devices.sketches.rules.library.program` makes the program of them.
TVM alone cannot replay such a trace.
"""

from __future__ import annotations

from math import ceil

import tvm
from tvm.s_tir import Schedule
from tvm.target import Target

from devices.sketches.rules.library import COLUMNS, LIBRARY, ROWS
from devices.sketches.rules.library.operators import Operator, operator_of

ONEDNN = "onednn"
"""The rule's name is that of the library, so that reports say which kernels are its own."""
_PARTS_OF_A_CORE = (1, 2, 4, 8)
_WIDTHS = (64, 128, 256, 512)
_MIN_PIXELS = 4
"""Pixels, or rows of a product, of one call."""


def onednn(module: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the design space of ``module`` with calls of the library; none where the target does not name it, or the
    program is not among its functions.

    The schedule's trace holds the open decisions; its own decisions are arbitrary valid ones.
    """
    named = target.kind.name == "llvm" and ONEDNN in map(str, target.attrs.get("libs", []))
    operator = operator_of(module) if named else None
    if operator is None:
        return []
    schedule = Schedule(module, seed=1, debug_mask="none", error_render_level="none")
    root = schedule.get_sblock("root", "main")
    for key, values in (
        (ROWS, _rows(operator, int(target.attrs.get("num-cores", 1)))),
        (COLUMNS, _columns(operator, int(target.attrs.get("num-cores", 1)))),
    ):
        schedule.annotate(root, key, schedule.sample_categorical(values, [1 / len(values)] * len(values)))
    schedule.annotate(root, LIBRARY, ONEDNN)
    return [schedule]


def _rows(operator: Operator, cores: int) -> list[int]:
    """Return numbers of rows that give each core some parts, and all rows."""
    least = ceil(_MIN_PIXELS / operator.width)
    parts = [ceil(operator.rows / (cores * each)) for each in _PARTS_OF_A_CORE]
    return sorted({operator.rows, *(each for each in parts if each >= least)}, reverse=True)


def _columns(operator: Operator, cores: int) -> list[int]:
    """Return numbers of columns: all, a part for each core, and widths of which weights stay in the cache."""
    share = ceil(operator.outputs / cores / _WIDTHS[0]) * _WIDTHS[0]
    return sorted({operator.outputs, *(each for each in (share, *_WIDTHS) if each < operator.outputs)}, reverse=True)
