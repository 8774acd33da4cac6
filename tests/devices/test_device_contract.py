"""What every device promises (devices.protocol.Device), checked on the real, the simulated and the recorded one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from devices.client.rpc_device import RpcDevice
from devices.protocol import Device, MeasureRequest
from devices.server.server import DeviceServer
from devices.simulated.recorded import RecordedDevice
from devices.simulated.simulated import Faults, SimulatedDevice
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import (
    Candidate,
    DeviceClass,
    Measurement,
    Outcome,
    StopRule,
)
from fleet_tune.base.errors import DeviceUnreachableError
from tests.helpers import virtual_devices as virtual
from tests.helpers.kernels import MakeArtifact
from tests.helpers.virtual_devices import FAILURES, recorded, recorded_artifact

RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=5.0)
SHORT = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=0.3)


class Bench:
    """A device and the artifacts of one task for it: what each kind does is known."""

    def __init__(self, device: Device, lost: Device, make: MakeArtifact) -> None:
        self.device = device
        self.lost = lost
        self.make = make

    def measure(self, what: str, best: float = math.inf, rule: StopRule = RULE, number: int = 0) -> Measurement:
        return self.device.measure(MeasureRequest(self.make(what, number=number), best, rule))


@pytest.fixture(params=["rpc", "simulated", "recorded"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "recorded":
        yield Bench(RecordedDevice(recorded()), RecordedDevice(recorded(), lost_after=0), recorded_artifact)
        return
    if request.param == "simulated":
        faults = Faults({c.id: outcome for what, outcome in FAILURES.items() for c in [_candidate(what)]})
        device_class = DeviceClass("simulated", "{}")
        yield Bench(
            SimulatedDevice(device_class, faults=faults),
            SimulatedDevice(device_class, faults=Faults(lost_after=0)),
            virtual.simulated_artifact,
        )
        return
    server: DeviceServer = request.getfixturevalue("server")
    target: str = request.getfixturevalue("native_target")
    port: int = request.getfixturevalue("free_port")
    config = DeviceConfig(name="rpc", target=target, threads=2, candidate_secs=3.0)
    device = RpcDevice(config, "127.0.0.1", server.port)
    lost = RpcDevice(config, "127.0.0.1", port, connect_timeout_secs=0.2)
    yield Bench(device, lost, request.getfixturevalue("make_artifact"))
    device.close()


def _candidate(what: str) -> Candidate:
    candidate = virtual.simulated_artifact(what).candidate
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


def test_kernels_run_in_a_round_where_the_device_can(ready: Bench) -> None:
    kernels = [ready.make("ok"), ready.make("ok", number=1)]
    secs = ready.device.extra_secs(kernels, 60.0)
    assert (secs is None) == isinstance(ready.device, RecordedDevice)
    assert secs is None or abs(secs) < 1.0
    assert ready.device.extra_secs(kernels, 0.0) in {None, secs}, "there is no time to load them"
    ready.lost.add_oracle(ready.make("ok", oracle=True))
    assert ready.lost.extra_secs(kernels, 60.0) is None
    assert ready.measure("ok").verified


@pytest.mark.parametrize("what", ["crash", "hang"])
def test_a_kernel_that_fails_in_a_round_is_no_fault_of_the_next_candidate(ready: Bench, what: str) -> None:
    secs = ready.device.extra_secs([ready.make("ok"), ready.make(what)], 60.0)
    assert secs is None or isinstance(ready.device, SimulatedDevice)
    assert ready.measure("ok").verified


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
