"""Measurement rules that a method can choose by name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fleet_tune.base.domain import StopRule

RUNS = 500
MICRO_BATCH = 50
"""AdaTune, section 5.1: ``n`` runs of a candidate at most, in micro-batches of ``B``."""
ADATUNE_MAX_CV = 0.10
"""AdaTune, section 4.1: the coefficient of variation below which a measurement ends."""

RACED = StopRule()
"""Our rule: short micro-batches of a fixed time. A measurement ends when the candidate has lost against the
incumbent."""

ADAPTIVE = StopRule(
    micro_batch_runs=MICRO_BATCH,
    min_batches=2,
    max_batches=RUNS // MICRO_BATCH,
    max_cv=ADATUNE_MAX_CV,
    race_factor=math.inf,
    timeout_factor=math.inf,
)
"""AdaTune's adaptive evaluator (algorithm 1, lines 11 to 14): after each micro-batch of 50 runs the measurement ends
if the coefficient of variation of the throughputs so far is at most 10%, and after 500 runs in any case. One throughput
alone has no variation, so there are at least two micro-batches."""

DETERMINISTIC = StopRule(
    micro_batch_runs=MICRO_BATCH,
    min_batches=RUNS // MICRO_BATCH,
    max_batches=RUNS // MICRO_BATCH,
    race_factor=math.inf,
    timeout_factor=math.inf,
)
"""The rule with which AdaTune measures AutoTVM (section 5.1): 500 runs of every candidate, as far as they fit into the
timeout."""

STOP_RULES: Mapping[str, StopRule] = {"raced": RACED, "adaptive": ADAPTIVE, "deterministic": DETERMINISTIC}
"""Evaluators by the names that may follow a method's name: ``fleet:adaptive``."""
