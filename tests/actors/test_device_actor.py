"""What the device's actor asks of its device, and what it makes of the answers, as fast as that is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
import ray

from actors.device import DeviceActor
from devices.protocol import Artifact, Device, MeasureRequest
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.domain import Candidate, DeviceClass, Fingerprint, Measurement, Outcome, Record, StopRule
from tests.helpers.devices import make_fingerprint

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(autouse=True)
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor has a process of its own, in which torch may not be loaded; here other tests need it."""
    monkeypatch.setattr("actors.device.without_torch", lambda: None)


class Steady:
    """A device on which every kernel takes ``run_secs``, and the probe ``kernel_secs``."""

    def __init__(self) -> None:
        self.run_secs = 1.0
        self.kernel_secs = 1.0
        self.coming: list[float] = []  # of the next probes, in place of kernel_secs
        self.asked: list[MeasureRequest] = []

    def fingerprint(self) -> Fingerprint:
        return make_fingerprint(DeviceClass("class", "target"), SIMULATED_CPU, probe_secs=self.kernel_secs)

    def ping(self) -> float:
        return 0.0

    def probe_secs(self) -> float:
        return self.coming.pop(0) if self.coming else self.kernel_secs

    def vitals(self) -> dict[str, float]:
        return {}

    def add_oracle(self, artifact: Artifact) -> None: ...

    def measure(self, request: MeasureRequest) -> Measurement:
        self.asked.append(request)
        return Measurement(Outcome.OK, (self.run_secs,), verified=self.run_secs < request.incumbent_secs)


class Stored:
    """Stands in for the recorder's client."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.units: dict[str, float] = {}

    def probed_and_wait(self, device_id: str, usual_secs: float) -> float:
        return self.units.setdefault(device_id, usual_secs)

    def append_and_wait(self, records: Sequence[Record], epoch: int | None = None) -> None:
        del epoch
        self.records += records


class Bench:
    """An actor (in this process) with its device and its recorder."""

    def __init__(self, stored: Stored | None = None) -> None:
        self.device, self.stored = Steady(), stored or Stored()
        self.actor = DeviceActor("device", self._open, "run", None)
        self._built = 0

    @contextlib.contextmanager
    def _open(self) -> Iterator[Device]:
        yield cast(Device, self.device)

    def measure(self, told_secs: float, run_secs: float) -> MeasureRequest:
        """What the device was asked for a candidate that takes ``run_secs``, with an incumbent of ``told_secs``."""
        self._built += 1
        self.device.run_secs = run_secs
        artifact = Artifact("task", Candidate("task", 0, "s", (self._built,)), b"", (), (), (), (), "", 0.0)
        oracle = ray.put(Artifact("task", None, b"", (), (), (), (), "", 0.0))
        oracles = {"task": ([oracle], told_secs)}
        self.actor.measure([ray.put(artifact)], oracles, StopRule(), self.stored, 1)
        return self.device.asked[-1]


def test_what_the_scheduler_says_of_the_incumbent_holds_in_both_directions() -> None:
    bench = Bench()
    assert bench.measure(math.inf, 3.0).incumbent_secs == math.inf
    assert bench.measure(3.0, 0.5).incumbent_secs == 3.0
    # That one was measured on a device that was off: it does not count any more.
    assert bench.measure(3.0, 2.0).incumbent_secs == 3.0
    assert bench.stored.records[-1].measurement.verified


def test_a_device_that_is_faster_is_as_good_as_it_was() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.kernel_secs = 0.5
    # It races against what the incumbent would take now.
    asked = bench.measure(3.0, 1.0)
    assert asked.incumbent_secs == 1.5
    assert asked.confirm is not None
    assert asked.confirm.below_secs == 1.5
    measured = bench.stored.records[-1].measurement
    assert (measured.run_secs, measured.speed, measured.cost_secs, measured.verified) == ((1.0,), 2.0, 2.0, True)


def test_the_seconds_of_a_store_have_one_unit_also_in_another_process() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    later = Bench(bench.stored)
    later.device.kernel_secs = 0.25
    assert later.measure(3.0, 5.0).incumbent_secs == 0.75
    assert bench.stored.records[-1].measurement.cost_secs == 20.0


def test_what_was_measured_while_the_speed_changed_is_measured_again() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.coming = [1.0, 2.0, 2.0]
    bench.measure(3.0, 5.0)
    assert [each.incumbent_secs for each in bench.device.asked] == [math.inf, 3.0, 6.0]
    measured = bench.stored.records[-1].measurement
    assert measured.speed == 0.5
    # Of the probes 1, 1, 1, 2, 2 the usual one is 1: a quarter of ln 2.
    assert measured.speed_error == pytest.approx(0.1733, abs=1e-4)
    assert len(bench.stored.records) == 2


def test_where_it_changes_again_the_error_says_so() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.coming = [1.0, 2.0, 1.0]
    bench.measure(3.0, 5.0)
    measured = bench.stored.records[-1].measurement
    assert measured.speed == pytest.approx(2**-0.5)
    # Half of ln 2, and a quarter of half of it: sqrt(0.3466^2 + 0.0866^2).
    assert measured.speed_error == pytest.approx(0.3572, abs=1e-4)


def test_what_is_verified_is_not_measured_again() -> None:
    bench = Bench()
    bench.measure(math.inf, 3.0)
    bench.device.coming = [1.0, 2.0]
    bench.measure(3.0, 1.0)
    assert len(bench.device.asked) == 2
    measured = bench.stored.records[-1].measurement
    assert measured.verified
    assert measured.speed_error > 0.3
    # What it took then is no bar for others: 1.0 would have been one.
    assert bench.measure(3.0, 5.0).incumbent_secs == 3.0
