"""The guard of attention against rows of nothing but -inf, in the form that torch.export gives it.

    where(isnan(softmax(scores)), 0, softmax(scores))        as torch writes it into ONNX
    where(not any(scores != -inf), 0, softmax(scores))       as torch computes it

Both are 0 if a mask hides all columns. If a score is NaN or infinite, the first form gives 0 and the second NaN, as in
the exported module.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst

from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.ir.main_function import replace_calls

SOFTMAX = "relax.nn.softmax"


def with_exact_guards(module: Any, is_wanted: Callable[[int], bool]) -> Any:
    """Return ``module`` with guards of the first form changed to the second, after those softmaxes that ``is_wanted``
    accepts by their number in program order."""
    numbers: dict[Any, int] = {}
    """The number of each softmax, by its scores."""
    numbered = itertools.count()

    def count(_: relax.BlockBuilder, softmax: Call) -> Any:
        numbers[softmax.args[0]] = next(numbered)
        return softmax

    def guarded(builder: relax.BlockBuilder, variable: Any) -> Call | None:
        """Return the softmax that a variable is bound to, if it is wanted."""
        softmax = builder.lookup_binding(variable) if isinstance(variable, relax.Var) else None
        if softmax is None or operator_name(softmax) != SOFTMAX or not _is_along_the_last(softmax):
            return None
        return softmax if is_wanted(numbers[softmax.args[0]]) else None

    def guard(builder: relax.BlockBuilder, call: Call) -> Any:
        softmax = guarded(builder, call.args[0])
        return call if softmax is None else _hides_all(builder, softmax.args[0])

    def choose(builder: relax.BlockBuilder, call: Call) -> Any:
        condition, zeros, weights = call.args
        if not isinstance(zeros, GenericConst) or zeros.ty.ndim or guarded(builder, weights) is None:
            return call
        return relax.op.where(condition, builder.emit(relax.op.full_like(weights, zeros)), weights)

    return replace_calls(module, {SOFTMAX: count, "relax.isnan": guard, "relax.where": choose})


def _is_along_the_last(softmax: Call) -> bool:
    return int(softmax.attrs.axis) in (-1, int(softmax.ty.ndim) - 1)


def _hides_all(builder: relax.BlockBuilder, scores: Any) -> Any:
    """Return, for each row along the last axis, whether all of it is -inf."""
    lowest = builder.emit(relax.op.equal(scores, relax.const(np.float32(-math.inf), str(scores.ty.dtype))))
    others = builder.emit(relax.op.astype(builder.emit(relax.op.logical_not(lowest)), "int8"))
    any_other = builder.emit(relax.op.max(others, axis=[-1], keepdims=True))
    return relax.op.logical_not(builder.emit(relax.op.astype(any_other, "bool")))
