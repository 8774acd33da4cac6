"""A dataset and artifacts for devices without hardware: what each kind does is known."""

from __future__ import annotations

from devices.protocol import Artifact, BuildRequest
from devices.simulated.recorded import without_kernel
from devices.simulated.simulated import SIMULATED_CPU, SimulatedBuilder
from fleet_tune.base.domain import Candidate, Measurement, Outcome
from fleet_tune.base.sketch import Choice, Sketch
from fleet_tune.base.task_data import Dataset, task_data
from tests.helpers.devices import make_fingerprint
from tests.helpers.records import make_record
from tests.helpers.tasks import make_task

FAILURES = {
    "crash": Outcome.RUN_ERROR,
    "hang": Outcome.RUN_TIMEOUT,
    "wrong": Outcome.WRONG_OUTPUT,
}


def simulated_artifact(what: str = "ok", oracle: bool = False, task_id: str = "scale", number: int = 0) -> Artifact:
    name, _, device_class = task_id.partition("@")
    task = make_task(name, device_class or "simulated")
    built = SimulatedBuilder().build(
        BuildRequest(task, None if oracle else Candidate(task.id, 0, what, (1024, number)))
    )
    assert isinstance(built, Artifact)
    return built


def recorded() -> Dataset:
    """Candidates of the task "scale" that run or fail as the device of the dataset once saw them."""
    task = make_task("scale", "recorded")
    sketches = tuple(
        Sketch(at, "toy", what, (Choice("n", (1024,)), Choice("number", (0, 1))), ())
        for at, what in enumerate(("ok", *FAILURES))
    )
    records = []
    for sketch in sketches:
        for number in (0, 1):
            outcome = FAILURES.get(sketch.trace_text, Outcome.OK)
            run_secs = (1e-3, 1.1e-3) if outcome is Outcome.OK else ()
            detail = "" if run_secs else f"recorded as {outcome}"
            measurement = Measurement(outcome, run_secs, 0.5, 0.02, detail=detail)
            records.append(make_record(Candidate(task.id, sketch.index, sketch.id, (0, number)), measurement))
    data, _ = task_data(task, SIMULATED_CPU, sketches, records)
    return Dataset("toy", (make_fingerprint(task.device_class, SIMULATED_CPU),), (data,))


def recorded_artifact(
    what: str = "ok", oracle: bool = False, task_id: str = "scale@recorded", number: int = 0
) -> Artifact:
    sketch_id = Sketch(0, "toy", what, (), ()).id
    candidate = None if oracle else Candidate(task_id, 0, sketch_id, (0, number))
    return without_kernel(task_id, candidate, 0.5)
