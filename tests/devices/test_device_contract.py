"""What every device promises (devices.protocol.Device), checked on the real, the simulated and the replayed one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from devices.client.rpc_device import RpcDevice
from devices.protocol import Artifact, BuildRequest, Device, MeasureRequest
from devices.server.server import DeviceServer
from devices.simulated.recorded import RecordedDevice
from devices.simulated.simulated import SIMULATED_CPU, Faults, SimulatedBuilder, SimulatedDevice
from fleet_tune.config.fleet_file import DeviceConfig
from fleet_tune.domain import (
    Candidate,
    DeviceClass,
    Fingerprint,
    Measurement,
    Outcome,
    Record,
    StopRule,
    Task,
    Workload,
)
from fleet_tune.errors import DeviceUnreachableError
from fleet_tune.records.dataset import Dataset, task_data
from fleet_tune.sketch import Choice, Sketch

MakeArtifact = Callable[..., Artifact]
RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=5.0)
SHORT = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=0.3)

FAILURES = {
    "crash": Outcome.RUN_ERROR,
    "hang": Outcome.RUN_TIMEOUT,
    "wrong": Outcome.WRONG_OUTPUT,
}


class Bench:
    """A device and the artifacts of one task for it: what each kind does is known."""

    def __init__(self, device: Device, lost: Device, make: MakeArtifact) -> None:
        self.device = device
        self.lost = lost
        self.make = make

    def measure(self, what: str, best: float = math.inf, rule: StopRule = RULE, number: int = 0) -> Measurement:
        return self.device.measure(MeasureRequest(self.make(what, number=number), best, rule))


def simulated_artifact(what: str = "ok", oracle: bool = False, task_id: str = "scale", number: int = 0) -> Artifact:
    name, _, device_class = task_id.partition("@")
    task = Task(Workload(name, name, 1e6, "{}"), DeviceClass(device_class or "simulated", "{}"))
    built = SimulatedBuilder().build(
        BuildRequest(task, None if oracle else Candidate(task.id, 0, what, (1024, number)))
    )
    assert isinstance(built, Artifact)
    return built


def recorded() -> Dataset:
    """Candidates of the task "scale" that run or fail as the device of the dataset once saw them."""
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
            candidate = Candidate("scale@replayed", sketch.index, sketch.id, (0, number))
            records.append(Record(candidate.id, "run", candidate, "", measurement, "device", 0.0))
    device_class = DeviceClass("replayed", "{}")
    task = Task(Workload("scale", "scale", 1e6, "{}"), device_class)
    data, _ = task_data(task, SIMULATED_CPU, sketches, records)
    fingerprint = Fingerprint(device_class, SIMULATED_CPU, "some", SIMULATED_CPU.cores, "none", 1e-3)
    return Dataset("toy", (fingerprint,), (data,))


def recorded_artifact(
    what: str = "ok", oracle: bool = False, task_id: str = "scale@replayed", number: int = 0
) -> Artifact:
    sketch_id = Sketch(0, "toy", what, (), ()).id
    return Artifact(
        task_id=task_id,
        candidate=None if oracle else Candidate(task_id, 0, sketch_id, (0, number)),
        library=b"",
        args=(),
        original_args=(),
        outputs=(),
        packed=(),
        trace="",
        build_secs=0.5,
    )


@pytest.fixture(params=["rpc", "simulated", "replayed"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "replayed":
        yield Bench(RecordedDevice(recorded()), RecordedDevice(recorded(), lost_after=0), recorded_artifact)
        return
    if request.param == "simulated":
        faults = Faults({c.id: outcome for what, outcome in FAILURES.items() for c in [_candidate(what)]})
        device_class = DeviceClass("simulated", "{}")
        yield Bench(
            SimulatedDevice(device_class, faults=faults),
            SimulatedDevice(device_class, faults=Faults(lost_after=0)),
            simulated_artifact,
        )
        return
    server: DeviceServer = request.getfixturevalue("server")
    target: str = request.getfixturevalue("native_target")
    port: int = request.getfixturevalue("free_port")
    config = DeviceConfig(name="rpc", target=target, threads=2)
    device = RpcDevice(config, "127.0.0.1", server.port)
    lost = RpcDevice(config, "127.0.0.1", port, connect_timeout_secs=0.2)
    yield Bench(device, lost, request.getfixturevalue("make_artifact"))
    device.close()


def _candidate(what: str) -> Candidate:
    candidate = simulated_artifact(what).candidate
    assert candidate is not None
    return candidate


@pytest.fixture
def ready(bench: Bench) -> Bench:
    bench.device.add_oracle(bench.make("ok", oracle=True))
    return bench


def test_a_fingerprint_describes_the_device(bench: Bench) -> None:
    found = bench.device.fingerprint()
    assert found.threads == found.abstraction.cores
    assert found.probe_secs > 0
    assert found.device_class.name


def test_the_probe_is_the_fingerprints(bench: Bench) -> None:
    found = bench.device.fingerprint()
    again = bench.device.probe_secs()
    # The same kernel on the same device; a shared machine may be off by a lot, a wrong kernel by orders of magnitude.
    assert found.probe_secs / 20 < again < found.probe_secs * 20
    assert bench.device.ping() >= 0.0


def test_a_good_candidate_is_measured_and_verified(ready: Bench) -> None:
    measured = ready.measure("ok")
    assert (measured.outcome, measured.verified, measured.stopped) == (Outcome.OK, True, "maximum")
    assert len(measured.run_secs) == RULE.max_batches
    assert measured.build_secs == ready.make("ok").build_secs
    assert measured.measure_secs > 0


def test_what_is_no_new_incumbent_is_not_verified(ready: Bench) -> None:
    measured = ready.measure("ok", best=1e-12)
    assert (measured.outcome, measured.verified) == (Outcome.OK, False)


@pytest.mark.parametrize(("what", "outcome"), FAILURES.items())
def test_failures_are_values_and_the_next_candidate_is_measured(ready: Bench, what: str, outcome: Outcome) -> None:
    failed = ready.measure(what, rule=SHORT)
    assert failed.outcome is outcome
    assert failed.run_secs == ()
    assert failed.detail
    assert failed.build_secs == ready.make(what).build_secs
    assert ready.measure("ok", number=1).verified


def test_a_lost_device_is_a_value_and_for_the_fingerprint_an_error(bench: Bench) -> None:
    bench.lost.add_oracle(bench.make("ok", oracle=True))
    lost = bench.lost.measure(MeasureRequest(bench.make("ok"), math.inf, RULE))
    assert lost.outcome is Outcome.DEVICE_LOST
    assert not lost.outcome.blames_candidate
    with pytest.raises(DeviceUnreachableError):
        bench.lost.fingerprint()
    with pytest.raises(DeviceUnreachableError):
        bench.lost.probe_secs()
    with pytest.raises(DeviceUnreachableError):
        bench.lost.ping()


def test_wrong_use_is_an_error(ready: Bench) -> None:
    with pytest.raises(ValueError, match="candidate"):
        ready.device.measure(MeasureRequest(ready.make("ok", oracle=True), math.inf))
    with pytest.raises(ValueError, match="oracle"):
        ready.device.measure(MeasureRequest(ready.make("ok", task_id="other"), math.inf))
    with pytest.raises(ValueError, match="oracle"):
        ready.device.add_oracle(ready.make("ok"))


def test_closing_twice_is_fine_and_a_closed_device_can_be_used_again(ready: Bench) -> None:
    ready.device.close()
    ready.device.close()
    assert ready.measure("ok").verified
