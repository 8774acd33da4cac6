"""What every builder promises (actors.processes.builder.Worker), checked on the real, the simulated and the recorded
one.

The real one runs a child without a compiler: real builds are test_builder.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.processes.builder import Worker
from devices.builds.builder import BuildWorker
from devices.protocol import Artifact, BuildRequest
from devices.simulated.recorded import RecordedBuilder
from devices.simulated.simulated import SIMULATED_CPU, Faults, SimulatedBuilder
from fleet_tune.base.domain import Candidate, Measurement, Outcome
from fleet_tune.base.records.datasets.dataset import save
from fleet_tune.base.sketch import Choice, Sketch
from fleet_tune.base.task_data import Dataset, task_data
from tests.helpers.build_child import CRASH, HANG, OK
from tests.helpers.devices import make_fingerprint
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task

TASK = make_task("matmul", "cpu")
TIMEOUT_SECS = 0.5
FAILURES = {CRASH: Outcome.BUILD_ERROR, HANG: Outcome.BUILD_TIMEOUT}
SKETCH = Sketch(0, "toy", "toy", (Choice("what", tuple(range(8))), Choice("number", tuple(range(8)))), ())


def candidate(what: int, number: int = 7) -> Candidate:
    """What becomes of it is known."""
    return make_candidate(TASK, what, number, sketch_id=SKETCH.id)


def request(what: int, number: int = 7) -> BuildRequest:
    return BuildRequest(TASK, candidate(what, number), TIMEOUT_SECS if what == HANG else 30.0)


def real(stand_in: str, folder: Path) -> Worker:
    del folder
    return BuildWorker(module=stand_in)


def simulated(stand_in: str, folder: Path) -> Worker:
    del stand_in, folder
    return SimulatedBuilder(faults=Faults({candidate(what).id: outcome for what, outcome in FAILURES.items()}))


def recorded(stand_in: str, folder: Path) -> Worker:
    del stand_in
    records = [make_record(candidate(OK, number), ok(1e-3)) for number in (6, 7)]
    records += [make_record(candidate(what), failed(outcome)) for what, outcome in FAILURES.items()]
    data, unknown = task_data(TASK, SIMULATED_CPU, (SKETCH,), records)
    assert unknown == 0
    save(Dataset("toy", (make_fingerprint(TASK.device_class),), (data,)), folder / "toy.ftd")
    return RecordedBuilder(folder / "toy.ftd")


@pytest.fixture(params=[real, simulated, recorded], ids=["real", "simulated", "recorded"])
def builder(request: pytest.FixtureRequest, stand_in: str, tmp_path: Path) -> Iterator[Worker]:
    make: Callable[[str, Path], Worker] = request.param
    worker = make(stand_in, tmp_path)
    yield worker
    worker.close()


def built(builder: Worker, asked: BuildRequest) -> Artifact:
    result = builder.build(asked)
    assert isinstance(result, Artifact), result
    return result


def test_an_artifact_names_what_was_asked_for(builder: Worker) -> None:
    for number in (7, 6):
        artifact = built(builder, request(OK, number))
        assert (artifact.task_id, artifact.candidate) == (TASK.id, candidate(OK, number))
        assert artifact.build_secs > 0
        assert isinstance(artifact.library, bytes)


def test_the_same_request_builds_the_same(builder: Worker) -> None:
    first, second = built(builder, request(OK)), built(builder, request(OK))
    assert (first.candidate, first.library, first.args, first.outputs, first.packed, first.trace) == (
        second.candidate,
        second.library,
        second.args,
        second.outputs,
        second.packed,
        second.trace,
    )


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_is_a_value_and_the_next_candidate_is_built(builder: Worker, what: int) -> None:
    asked = request(what)
    measurement = builder.build(asked)
    assert isinstance(measurement, Measurement)
    assert measurement.outcome is FAILURES[what]
    assert measurement.outcome.blames_candidate
    assert (measurement.run_secs, measurement.verified) == ((), False)
    assert measurement.detail
    assert measurement.build_secs > 0
    assert built(builder, request(OK)).candidate == candidate(OK)


def test_the_oracle_has_no_candidate(builder: Worker) -> None:
    oracle = built(builder, BuildRequest(TASK, None, 30.0))
    assert (oracle.task_id, oracle.candidate) == (TASK.id, None)


def test_it_may_be_started_twice_or_not_at_all(builder: Worker) -> None:
    builder.start()
    builder.start()
    built(builder, request(OK))


def test_it_may_be_closed_twice_and_unused(builder: Worker) -> None:
    builder.close()
    builder.close()
