"""Pruner's equation 1 as it stands, also for CPUs: a variant, for comparison.

The analyzer of a CPU (:mod:`policies.analysis.cpu`) is a model of its own; the paper has GPUs alone. Here the symbols
of a CPU program (:mod:`policies.analysis.symbols` says what each of them is there) go into the penalties and into
equation 1 word for word: ``L = sum_s S8_s / U_p + S5_s / U_m``, with the ``1 + S2 / S1`` of the paper, over all
statements of the program.
"""

from __future__ import annotations

import numpy as np

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import Sketch
from policies.analysis.analyzer import models
from policies.analysis.cpu import CpuModel
from policies.analysis.symbols import limits, penalties, statement_secs
from policies.arrays import Floats, Matrix


def equation_1_log_secs(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
    """The natural logarithm of equation 1's seconds, ``(n,)``, plus infinity where the analyzer rules a candidate out;
    0 where the sketch is not described."""
    log_secs = np.zeros(len(matrix))
    if not sketch.statements:
        return log_secs
    limit = limits(device)
    for rows, evaluation in models(sketch, matrix, device):
        described = evaluation.statement_symbols() if isinstance(evaluation, CpuModel) else evaluation.symbols()
        total: Floats = np.zeros(len(evaluation.latency_secs))
        for each in described:
            compute, memory = statement_secs(each, penalties(each, limit), limit)
            total = total + compute + memory
        log_secs[rows] = np.where(evaluation.feasible, np.log(total), np.inf)
    return log_secs
