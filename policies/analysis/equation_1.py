"""Pruner's equation 1 as published: a variant, for comparison.

Our analyzers differ from it. The CUDA analyzer (:mod:`policies.analysis.cuda`) bounds the L0 term and adds the start of
each kernel. The CPU analyzer (:mod:`policies.analysis.cpu.model`), which the paper does not have, is a model of its
own. Here the symbols of a program (:mod:`policies.analysis.symbols` defines them for a CPU) go into the penalties and
into equation 1: ``L = sum_s S8_s / U_p + S5_s / U_m`` over all statements of the program, with ``l0_c = 1 + S2 / S1``.
The paper can also be read as ``1 + S2^2 / S1``; ``squared`` selects that reading (``bench draft-penalties`` has both).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import models
from policies.analysis.symbols import Penalties, limits, penalties, statement_secs
from policies.arrays import Floats, Matrix

Left = Literal["", "compute", "memory"]
"""Penalties that are left out: none; ``P_l0c``, ``P_l1c`` and ``P_l2c``; or ``P_l0m``, ``P_l1m`` and ``P_l2m``."""


def equation_1_log_secs(
    sketch: Sketch,
    matrix: Matrix,
    device: DeviceAbstraction,
    without: Left = "",
    *,
    squared: bool = False,
    penalised: bool = False,
) -> Floats:
    """The natural logarithm of equation 1's seconds, ``(n,)``; infinity for candidates that the analyzer rules out.
    All are 0 if the sketch has no statements.

    ``without``: penalties that count as 1 (table 10 of the paper). ``squared``: the other reading of ``l0_c``.
    ``penalised``: see :func:`policies.search.fitness.analyzer_log_secs`.
    """
    log_secs = np.zeros(len(matrix))
    if not sketch.statements:
        return log_secs
    limit = limits(device, sketch.statements[0].arithmetic)
    for rows, evaluation in models(sketch, matrix, device):
        total: Floats = np.zeros(len(evaluation.latency_secs))
        for each in evaluation.statement_symbols():
            terms = penalties(each, limit)
            if squared:
                terms = replace(terms, l0_c=1.0 + np.square(each.s2) / np.maximum(each.s1, 1.0))
            compute, memory = statement_secs(each, _less(terms, without), limit)
            total = total + compute + memory
        allowed = evaluation.within_limits if penalised else evaluation.feasible
        log_secs[rows] = np.where(allowed, np.log(total), np.inf)
    return log_secs


def _less(terms: Penalties, without: Left) -> Penalties:
    one = np.ones_like(terms.l2_c)
    if without == "compute":
        return replace(terms, l0_c=one, l1_c=one, l2_c=one)
    return replace(terms, l0_m=one, l1_m=one, l2_m=one) if without == "memory" else terms
