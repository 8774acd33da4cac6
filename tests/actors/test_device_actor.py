"""What the device's actor asks of its device while that is right, and while it is off."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import ray

from actors.calls import ActorLostError, ask
from actors.clients import DeviceClient, RecorderClient
from actors.device import DeviceActor, device_actor
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
        self.asked: list[MeasureRequest] = []

    def fingerprint(self) -> Fingerprint:
        return make_fingerprint(DeviceClass("class", "target"), SIMULATED_CPU, probe_secs=self.kernel_secs)

    def ping(self) -> float:
        return 0.0

    def probe_secs(self) -> float:
        return self.kernel_secs

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

    def append_and_wait(self, records: Sequence[Record], epoch: int | None = None) -> None:
        del epoch
        self.records += records


class Bench:
    """An actor (in this process) with its device and its recorder."""

    def __init__(self) -> None:
        self.device, self.stored = Steady(), Stored()
        self.actor = DeviceActor("device", self._open, "run", None)
        self._built = 0

    @contextlib.contextmanager
    def _open(self) -> Iterator[Device]:
        yield cast(Device, self.device)

    def check(self, kernel_secs: float) -> None:
        self.device.kernel_secs = kernel_secs
        self.actor.check("target", None)

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


def test_a_device_that_is_off_races_against_what_the_incumbent_would_take_now() -> None:
    bench = Bench()
    bench.check(1.0)
    bench.measure(math.inf, 3.0)
    bench.check(2.0)
    asked = bench.measure(3.0, 5.0)
    assert asked.incumbent_secs == 6.0
    assert asked.confirm is not None
    assert asked.confirm.below_secs == 6.0
    measured = bench.stored.records[-1].measurement
    assert (measured.speed, measured.verified) == (0.5, True)
    bench.check(1.0)
    assert bench.measure(3.0, 5.0).incumbent_secs == 3.0


@contextlib.contextmanager
def open_told(path: Path) -> Iterator[Device]:
    """A device whose probe takes as many seconds as ``path`` says."""
    device = Steady()
    device.kernel_secs = float(path.read_text())
    yield cast(Device, device)


async def test_a_restarted_actor_compares_with_what_the_device_was_like_when_it_joined(tmp_path: Path) -> None:
    (tmp_path / "secs").write_text("1.0")
    actor = device_actor().remote("device", partial(open_told, tmp_path / "secs"), "run", None)
    device = DeviceClient(actor, "target", RecorderClient(None))
    assert await device.check() == 1.0
    # It has slowed down meanwhile.
    (tmp_path / "secs").write_text("2.0")
    with contextlib.suppress(ActorLostError):
        await ask(actor.__ray_call__.remote(lambda _: os._exit(1)), 60.0, "end")
    assert await _when_it_is_back(device) == 2.0
    factor = await ask(actor.__ray_call__.remote(lambda own: own._drift.factor), 60.0, "factor")
    assert factor == 2.0
    ray.kill(actor)


async def _when_it_is_back(device: DeviceClient) -> float:
    """The answer to a check by an actor whose process ended."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            return await device.check()
        except ActorLostError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
