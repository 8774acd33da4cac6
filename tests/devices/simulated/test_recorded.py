"""The recorded device and builder: recorded outcomes, the stop rule in force, virtual time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from devices.protocol import Artifact, BuildRequest, MeasureRequest
from devices.simulated.recorded import NOT_RECORDED, RecordedBuilder, RecordedDevice
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.domain import (
    Candidate,
    DeviceClass,
    Measurement,
    Outcome,
    StopRule,
    Task,
)
from fleet_tune.base.errors import DatasetError
from fleet_tune.base.records.datasets.dataset import save
from fleet_tune.base.sketch import Choice, Sketch
from fleet_tune.base.task_data import Dataset, task_data
from policies.measuring.adaptive_stopping import decide
from tests.helpers.devices import make_fingerprint
from tests.helpers.records import make_record
from tests.helpers.tasks import make_candidate, make_task

TASK = make_task()
CLASS = TASK.device_class
SKETCH = Sketch(0, "toy", "toy", (Choice("number", tuple(range(10))),), ())
#: One run is longer than a micro-batch: each micro-batch is one run.
SLOW = (0.0125, 0.015, 0.0175)
RULE = StopRule(micro_batch_secs=0.01, min_batches=3, max_batches=5, max_cv=0.5)


def candidate(number: int) -> Candidate:
    return make_candidate(TASK, number, sketch_id=SKETCH.id)


def dataset(*measurements: Measurement, classes: tuple[DeviceClass, ...] = (CLASS,)) -> Dataset:
    """Candidate ``i`` is measured as ``measurements[i]``."""
    records = [make_record(candidate(at), measured) for at, measured in enumerate(measurements)]
    data, _ = task_data(TASK, SIMULATED_CPU, (SKETCH,), records)
    prints = tuple(make_fingerprint(each, SIMULATED_CPU) for each in classes)
    return Dataset("toy", prints, (data,))


def ok(*run_secs: float, measure_secs: float = 0.1) -> Measurement:
    return Measurement(Outcome.OK, run_secs, 0.5, measure_secs)


def artifact(number: int | None, task: Task = TASK) -> Artifact:
    wanted = None if number is None else candidate(number)
    return Artifact(task.id, wanted, b"", (), (), (), (), "", 0.5)


def device(recorded: Dataset, number_of_losses: int | None = None) -> RecordedDevice:
    made = RecordedDevice(recorded, decide=decide, lost_after=number_of_losses)
    made.add_oracle(artifact(None))
    return made


def test_the_recorded_micro_batches_are_given_again() -> None:
    made = device(dataset(ok(*SLOW)))
    measured = made.measure(MeasureRequest(artifact(0), math.inf, RULE))
    assert measured.run_secs == pytest.approx(SLOW)
    assert (measured.stopped, measured.verified, measured.build_secs) == ("converged", True, 0.5)
    # The first run and three micro-batches of one run, as recorded.
    assert measured.measure_secs == pytest.approx(0.1)
    assert made.elapsed_secs == pytest.approx(0.1)


def test_racing_spares_micro_batches_and_their_time() -> None:
    made = device(dataset(ok(*SLOW)))
    # Given up at the first run, which is counted at half: that is over twice the incumbent.
    measured = made.measure(MeasureRequest(artifact(0), 0.002, RULE))
    assert (measured.stopped, measured.verified) == ("raced", False)
    assert measured.run_secs == pytest.approx(SLOW[:1])
    assert measured.measure_secs == pytest.approx(0.1 - sum(SLOW))


def test_a_rule_that_asks_for_more_gets_the_recorded_ones_again() -> None:
    made = device(dataset(ok(*SLOW)))
    strict = StopRule(micro_batch_secs=0.01, min_batches=3, max_batches=5, max_cv=0.0)
    measured = made.measure(MeasureRequest(artifact(0), math.inf, strict))
    assert measured.run_secs == pytest.approx((*SLOW, *SLOW[:2]))
    assert measured.stopped == "maximum"
    assert measured.measure_secs == pytest.approx(0.1 + sum(SLOW[:2]))


def test_the_same_measurement_twice_is_the_same() -> None:
    made = device(dataset(ok(*SLOW)))
    request = MeasureRequest(artifact(0), math.inf, RULE)
    assert made.measure(request) == made.measure(request)


def test_there_is_nothing_to_warm_up() -> None:
    made = device(dataset(ok(*SLOW)))
    warmed = StopRule(micro_batch_secs=0.01, min_batches=3, max_batches=5, max_cv=0.5, warm_up_secs=1.0)
    plain, again = (made.measure(MeasureRequest(artifact(0), math.inf, rule)) for rule in (RULE, warmed))
    assert again == plain


def test_a_recorded_failure_is_a_failure() -> None:
    recorded = Measurement(Outcome.RUN_TIMEOUT, build_secs=0.5, measure_secs=10.0, detail="too slow")
    made = device(dataset(recorded))
    assert made.measure(MeasureRequest(artifact(0), math.inf, RULE)) == recorded
    assert made.elapsed_secs == 10.0


def test_what_was_not_recorded_fails_and_says_so(tmp_path: Path) -> None:
    recorded = dataset(ok(*SLOW))
    measured = device(recorded).measure(MeasureRequest(artifact(7), math.inf, RULE))
    assert (measured.outcome, measured.detail, measured.build_secs) == (Outcome.RUN_ERROR, NOT_RECORDED, 0.5)
    save(recorded, tmp_path / "some.ftd")
    built = RecordedBuilder(tmp_path / "some.ftd").build(BuildRequest(TASK, candidate(7)))
    assert isinstance(built, Measurement)
    assert (built.outcome, built.detail) == (Outcome.BUILD_ERROR, NOT_RECORDED)


def test_the_builder_builds_what_once_built(tmp_path: Path) -> None:
    failed = Measurement(Outcome.BUILD_TIMEOUT, build_secs=60.0, detail="no end")
    save(dataset(ok(*SLOW), failed), tmp_path / "one.ftd")
    save(dataset(ok(*SLOW), ok(*SLOW), ok(1.0)), tmp_path / "two.ftd")
    builder = RecordedBuilder(tmp_path / "one.ftd", tmp_path / "two.ftd")
    builder.start()
    built = builder.build(BuildRequest(TASK, candidate(0)))
    assert built == artifact(0)
    assert builder.build(BuildRequest(TASK, candidate(2))) == artifact(2)  # only the second one has it
    not_built = builder.build(BuildRequest(TASK, candidate(1)))
    assert not_built == failed
    assert builder.elapsed_secs == 0.5 + 0.5 + 60.0
    oracle = builder.build(BuildRequest(TASK, None))
    assert isinstance(oracle, Artifact)
    assert oracle.candidate is None
    builder.close()


def test_a_dataset_of_several_classes_needs_the_name_of_one() -> None:
    other = DeviceClass("other", "{}")
    several = dataset(ok(*SLOW), classes=(CLASS, other))
    with pytest.raises(DatasetError, match="several device classes; name one of these with device_class: board, other"):
        RecordedDevice(several)
    with pytest.raises(DatasetError, match="no device class 'third'"):
        RecordedDevice(several, "third")
    assert RecordedDevice(several, "other").fingerprint().device_class == other
