"""Sketch rule "onednn": products and convolutions by oneDNN's kernels (CPU).

Only targets that name the library (TVM's attribute ``libs``) have such sketches. The decisions are the numbers of rows
and of columns that one call computes; :mod:`devices.sketches.rules.library.program` makes the program for them. TVM
alone cannot replay such a trace.
"""

from __future__ import annotations

from math import ceil

import tvm
from tvm.s_tir import Schedule
from tvm.target import Target

from devices.sketches.rules.library import COLUMNS, LIBRARY, ROWS
from devices.sketches.rules.library.operators import Operator, operator_of

ONEDNN = "onednn"
"""The rule is named after the library, so that reports show which kernels are the library's."""
_PARTS_OF_A_CORE = (1, 2, 4, 8)
_WIDTHS = (64, 128, 256, 512)
_MIN_PIXELS = 4
"""Least pixels, or rows of a product, that one call computes."""


def onednn(module: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the design space of ``module`` with calls of the library; none if the target does not name the library, or
    the library cannot compute the program.

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
    """Return possible numbers of rows, in descending order: all rows, and numbers that give each core 1, 2, 4 or 8
    parts."""
    least = ceil(_MIN_PIXELS / operator.width)
    parts = [ceil(operator.rows / (cores * each)) for each in _PARTS_OF_A_CORE]
    return sorted({operator.rows, *(each for each in parts if each >= least)}, reverse=True)


def _columns(operator: Operator, cores: int) -> list[int]:
    """Return possible numbers of columns, in descending order: all, one part for each core, and widths with which the
    weights stay in the cache."""
    share = ceil(operator.outputs / cores / _WIDTHS[0]) * _WIDTHS[0]
    return sorted({operator.outputs, *(each for each in (share, *_WIDTHS) if each < operator.outputs)}, reverse=True)
