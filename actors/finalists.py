"""Measures the finalists of a task in turn, round by round, on one device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from devices.protocol import Artifact, MeasureRequest
from fleet_tune.domain import Measurement, Outcome, StopRule
from policies.measuring.shootout import in_turn

STOPPED = "shoot-out"


def measured_in_turn(
    measure: Callable[[MeasureRequest], Measurement], artifacts: Sequence[Artifact], rule: StopRule, rounds: int
) -> list[Measurement] | Measurement:
    """One measurement for each artifact, with the micro-batches of all rounds; the first failure of an artifact is its
    measurement, and it takes no further part. The device's loss ends it all: then that measurement alone.

    The outputs are checked in the first round. Each round places the tensors anew, and turns the order around
    (:func:`policies.measuring.shootout.in_turn`).
    """
    measurements: dict[int, Measurement] = {}
    for at in range(rounds):
        for index in in_turn(range(len(artifacts)), at):
            before = measurements.get(index)
            if before is not None and before.outcome is not Outcome.OK:
                continue
            # Nothing to race against; in the first round a cost below infinity is checked, later none below 0.
            best_secs = math.inf if before is None else 0.0
            measured = measure(MeasureRequest(artifacts[index], best_secs, rule, placed_anew=True))
            if measured.outcome is Outcome.DEVICE_LOST:
                return measured
            measurements[index] = measured if before is None else _joined(before, measured)
    return [measurements[index] for index in range(len(artifacts))]


def _joined(before: Measurement, now: Measurement) -> Measurement:
    measure_secs = before.measure_secs + now.measure_secs
    if now.outcome is not Outcome.OK:
        return dataclasses.replace(now, measure_secs=measure_secs)
    return dataclasses.replace(
        before, run_secs=before.run_secs + now.run_secs, measure_secs=measure_secs, stopped=STOPPED
    )
