"""Which records of a device that drifts are marked, and how."""

from __future__ import annotations

import pytest

from fleet_tune.domain import Candidate, Measurement, Outcome, Record
from policies.measuring.baseline import Baseline
from policies.measuring.drift import DriftWatch

GOOD = Measurement(Outcome.OK, (1.0,), verified=True)
FAILED = Measurement(Outcome.RUN_ERROR, detail="crash")


def record(number: int, measurement: Measurement = GOOD, revision: int = 0) -> Record:
    candidate = Candidate("task", 0, "s", (number,))
    return Record(f"run-{candidate.id}", "run", candidate, "trace", measurement, "device", 5.0, 7, revision)


def test_nothing_is_marked_while_the_device_is_right() -> None:
    watch = DriftWatch(1.2)
    assert watch.stamped(GOOD) == GOOD
    for secs in (1.0, 1.1, 0.9):
        assert watch.checked(secs) == []
        watch.stored([record(1)])
    assert watch.stamped(GOOD) == GOOD


def test_what_was_measured_since_the_device_was_last_right_is_marked_once() -> None:
    watch = DriftWatch(1.2)
    watch.checked(1.0)
    watch.stored([record(1)])
    assert watch.checked(1.1) == []
    watch.stored([record(2), record(3, FAILED), record(4, revision=2)])
    second, fourth = watch.checked(1.5)
    assert (second.candidate, second.revision, second.seq) == (record(2).candidate, 1, 0)
    assert second.uid == f"run-{record(2).candidate.id}-1"
    assert (second.measurement.speed, second.measurement.verified) == (1 / 1.5, True)
    assert second.measurement.speed_error == pytest.approx(0.1014, abs=1e-4)  # ln(1.5) / 4
    assert (fourth.revision, fourth.trace, fourth.unix_secs) == (3, "trace", 5.0)
    # From now on records are marked as they are made, and not once more.
    stamped = watch.stamped(GOOD)
    assert (stamped.speed, stamped.verified, stamped.run_secs) == (1 / 1.5, True, GOOD.run_secs)
    assert watch.stamped(FAILED) == FAILED
    watch.stored([record(5, stamped)])
    assert watch.checked(1.7) == []
    assert watch.factor == 1.7
    assert watch.checked(1.0) == []
    assert watch.stamped(GOOD) == GOOD


def test_a_new_watch_goes_on_with_what_the_one_before_it_knew() -> None:
    watch = DriftWatch(1.2)
    watch.stored([record(1)])
    [marked] = watch.checked(1.5, Baseline(1.0))
    assert marked.measurement.speed == 1 / 1.5
    assert watch.baseline == Baseline(1.0, 1.5, 1)
    # Its own knowledge is newer than what it is told.
    watch.checked(1.0, Baseline(2.0))
    assert watch.baseline == Baseline(1.0)
