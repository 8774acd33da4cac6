"""Faults of a real device while a run goes on: real actors, a real device server in processes of its own, real signals.

After each fault the run goes on, every trial is recorded once, and the device is back; what happened to it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.clients.calls import ask
from devices.protocol import Artifact, BuildRequest, BuildResult
from devices.simulated.simulated import SimulatedBuilder
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.device_state import Admin, DeviceEvent
from fleet_tune.base.domain import DeviceClass, Outcome, StopRule
from fleet_tune.base.records.orders import FleetOrders
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Progress
from tests.actors.conftest import Fleet, search_task
from tests.helpers.kernels import make_artifact, native_target

DEADLINE_SECS = 120.0
TRIALS = 200
"""Tens of them are stored at once: of fewer all may be done before the fault."""
RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=20.0)


class OneKernel(SimulatedBuilder):
    """Builds the same real kernel for every candidate, and a crashing one for those whose id begins so."""

    def __init__(self, kernel: Artifact, crash: Artifact, crashing: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._kernel = kernel
        self._crash = crash
        self._crashing = crashing

    def build(self, request: BuildRequest) -> BuildResult:
        bad = request.candidate is not None and request.candidate.id[0] in self._crashing
        return dataclasses.replace(
            self._crash if bad else self._kernel, task_id=request.task.id, candidate=request.candidate
        )


@contextlib.contextmanager
def open_rpc(name: str, port: int) -> Iterator[Any]:
    from devices.client.rpc_device import RpcDevice

    config = DeviceConfig(name=name, threads=2, device_class="here")
    with contextlib.closing(RpcDevice(config, "127.0.0.1", port, connect_timeout_secs=3.0)) as device:
        yield device


class Server:
    """``fleet-tune device serve`` in processes of its own, on one port for its whole life."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "fleet_tune",
            "device",
            "serve",
            "--no-key",
            "--port",
            str(self.port),
            "--threads",
            "2",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()

    def family(self) -> list[psutil.Process]:
        """The server's own process and all below it, the session's last."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def send(self, number: signal.Signals, processes: list[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def stop(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = self.family()
            self.send(signal.SIGCONT, family)
            self.send(signal.SIGKILL, family)
        self.process.wait(60.0)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(free_port: int) -> Iterator[Server]:
    running = Server(free_port)
    yield running
    running.stop()


@pytest.fixture
def tuned(fleet: Callable[..., Fleet], server: Server) -> Callable[..., Fleet]:
    """Makes a fleet of one real device."""

    def make(crashing: frozenset[str] = frozenset(), **settings: Any) -> Fleet:
        tasks = (search_task("large", extent=4096, device_class=DeviceClass("here", native_target())),)
        kernels = (make_artifact("ok"), make_artifact("crash"))
        return fleet(
            tasks=tasks,
            open_devices=(partial(open_rpc, "device-0", server.port),),
            make_builder=partial(OneKernel, *kernels, crashing),
            rule=RULE,
            **settings,
        )

    return make


async def until(scheduler: Any, condition: Callable[[Progress], bool]) -> Progress:
    deadline = time.monotonic() + DEADLINE_SECS
    while time.monotonic() < deadline:
        progress: Progress = await ask(scheduler.progress.remote(), 60.0, "progress")
        if condition(progress):
            return progress
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE_SECS:g} s: {progress}")


async def run(scheduler: Any, deadline_secs: float = DEADLINE_SECS) -> None:
    await ask(scheduler.run.remote(), deadline_secs, "run")


def checked(made: Fleet, trials: int = TRIALS) -> tuple[list[DeviceEvent], dict[Outcome, int]]:
    """Return the records of the run, after the checks that hold after every fault."""
    with RecordReader(made.store) as reader:
        records = [record for record in reader if record.revision == 0]
        assert len(records) == trials
        assert len({record.candidate.id for record in records}) == trials
        events = reader.devices.events(1000)
        assert all(event.reason for event in events)
        assert reader.devices.states()["device-0"].state.word == "good"
        return events, reader.counts()


async def test_a_killed_session_and_a_killed_child_cost_no_trial(tuned: Callable[..., Fleet], server: Server) -> None:
    made = tuned()
    scheduler = made.start(trials=TRIALS)
    running = asyncio.ensure_future(run(scheduler))
    seen = await until(scheduler, lambda progress: progress.trials > 10)
    # The process that runs the kernels, then all but the server's own.
    server.send(signal.SIGKILL, server.family()[-1:])
    seen = await until(scheduler, lambda progress: progress.trials > seen.trials + 10)
    server.send(signal.SIGKILL, server.family()[1:])
    await running
    _, outcomes = checked(made)
    assert outcomes[Outcome.OK] >= TRIALS - 2


async def test_a_killed_server_is_waited_for_and_used_when_it_is_back(
    tuned: Callable[..., Fleet], server: Server
) -> None:
    made = tuned()
    scheduler = made.start(trials=TRIALS)
    running = asyncio.ensure_future(run(scheduler))
    await until(scheduler, lambda progress: progress.trials > 10)
    server.stop()
    await until(scheduler, lambda progress: progress.devices == {"device-0": "lost"})
    server.start()
    await running
    events, outcomes = checked(made)
    assert outcomes == {Outcome.OK: TRIALS}
    kinds = [event.kind for event in events]
    lost = kinds.index("lost")
    assert kinds[:2] == ["joined", "probe_passed"]
    assert kinds[lost + 1 : lost + 3] == ["joined", "probe_passed"]


async def test_a_stopped_server_is_given_up_and_used_when_it_goes_on(
    tuned: Callable[..., Fleet], server: Server
) -> None:
    made = tuned()
    scheduler = made.start(trials=TRIALS)
    running = asyncio.ensure_future(run(scheduler))
    await until(scheduler, lambda progress: progress.trials > 10)
    stopped = server.family()
    server.send(signal.SIGSTOP, stopped)
    await until(scheduler, lambda progress: progress.devices == {"device-0": "lost"})
    server.send(signal.SIGCONT, stopped)
    await running
    events, _ = checked(made)
    assert "lost" in [event.kind for event in events]


async def test_crashing_candidates_are_recorded_and_no_fault_of_the_device(tuned: Callable[..., Fleet]) -> None:
    made = tuned(crashing=frozenset("0"))  # one in sixteen
    await run(made.start(trials=100))
    events, outcomes = checked(made, trials=100)
    assert set(outcomes) == {Outcome.OK, Outcome.RUN_ERROR}
    assert "lost" not in [event.kind for event in events], events


async def test_a_device_is_drained_and_resumed_from_outside(tuned: Callable[..., Fleet], tmp_path: Path) -> None:
    orders = FleetOrders(tmp_path / "fleet.orders.db")
    made = tuned(orders=orders.path)
    # Orders are looked for every second: not all trials may be done by then.
    scheduler = made.start(trials=TRIALS)
    running = asyncio.ensure_future(run(scheduler))
    await until(scheduler, lambda progress: progress.trials > 0)
    orders.give("device-0", Admin.DRAINING, "moving the rack")
    await until(scheduler, lambda progress: progress.devices == {"device-0": "maintenance"})
    orders.give("device-0", Admin.ACTIVE, "moved")
    await running
    events, outcomes = checked(made)
    assert outcomes == {Outcome.OK: TRIALS}
    reasons = " ".join(event.reason for event in events)
    assert "moving the rack" in reasons
    assert "resumed (moved)" in reasons


@pytest.mark.long
async def test_a_device_process_of_ours_that_is_killed_again_and_again_costs_no_trial(
    tuned: Callable[..., Fleet],
) -> None:
    made = tuned()
    scheduler = made.start(trials=TRIALS)
    # Each wait below has a deadline; the run is all of them.
    running = asyncio.ensure_future(run(scheduler, 2 * DEADLINE_SECS))
    await until(scheduler, lambda progress: progress.trials > 10)
    for _ in range(2):
        pid = await ask(made.actors["device-0"].__ray_call__.remote(lambda _: os.getpid()), 30.0, "pid")
        os.kill(pid, signal.SIGKILL)
        await until(scheduler, lambda progress: progress.devices != {"device-0": "good"})
        await until(scheduler, lambda progress: progress.devices == {"device-0": "good"})
    await running
    events, outcomes = checked(made)
    assert outcomes == {Outcome.OK: TRIALS}
    kinds = [event.kind for event in events]
    assert kinds.count("interrupted") == 2
    assert "lost" not in kinds  # nothing is held against the device
