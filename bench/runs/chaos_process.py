"""One run whose processes are killed: ``python -m bench.runs.chaos_process --kills 20 --trials 2000`` prints
one line of JSON.

Simulated devices and builders answer from the datasets of ``bench/data`` and take a stated time asleep; everything else
is a session as the command line starts it: its own heartbeats notice and replace what is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil  # type: ignore[import-untyped]

import fleet_tune
from actors.clusters.cluster import connected
from actors.session_plan import SessionPlan
from actors.tuning_session import TuningSession
from bench.measured import OTHER_CLASS, dataset_path
from devices.opening import opened_device
from devices.protocol import BuildRequest, BuildResult, Device, MeasureRequest
from devices.simulated.recorded import RecordedBuilder
from fleet_tune.config.fleet_file import BuildConfig, DeviceConfig, FleetConfig
from fleet_tune.domain import Limits, Measurement, Record
from fleet_tune.records.dataset import load
from fleet_tune.records.reader import RecordReader
from fleet_tune.search_task import SearchTask

BUILD_SECS = 0.03
MEASURE_SECS = 0.05
BUILDERS = 2
ACTORS = ("Scheduler", "Recorder", "Searcher", "Learner", "Builder", "DeviceActor")
CHILDREN = {"Builder": "build child", "DeviceActor": "device server"}
"""What the processes below those actors are called, of a real run."""
_SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
_LOOK_SECS = 0.05
# Of the trials, before the first kill and after the last one.
_MARGIN = 0.05


class SlowDevice:
    """A recorded device that takes ``MEASURE_SECS`` for each candidate."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def measure(self, request: MeasureRequest) -> Measurement:
        time.sleep(MEASURE_SECS)
        return self._device.measure(request)


@contextlib.contextmanager
def opened_slowly(config: DeviceConfig, realtime: bool) -> Iterator[Any]:
    with opened_device(config, realtime) as device:
        yield SlowDevice(device)


class SlowBuilder(RecordedBuilder):
    """A recorded builder that takes ``BUILD_SECS`` for each candidate."""

    def build(self, request: BuildRequest) -> BuildResult:
        time.sleep(BUILD_SECS)
        return super().build(request)


@dataclass
class Monkey:
    """Kills and stops processes below this one, ``kills`` of them, at random moments of so many ``trials``."""

    kills: int
    trials: int
    rng: random.Random
    done: list[dict[str, Any]] = field(default_factory=list)
    _stopped: list[psutil.Process] = field(default_factory=list)

    async def work(self, made: list[Record]) -> None:
        """``made``: the records that are acknowledged, as they come."""
        first, last = _MARGIN * self.trials, (1 - _MARGIN) * self.trials
        began = time.monotonic()
        for due in sorted(self.rng.uniform(first, last) for _ in range(self.kills)):
            while len(made) < due:
                await asyncio.sleep(_LOOK_SECS)
            victims = await asyncio.to_thread(processes)
            role = self.rng.choice(sorted(victims))
            victim, number = self.rng.choice(victims[role]), self.rng.choice(_SIGNALS)
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(number)
                self.done.append({"role": role, "signal": number.name, "at_secs": time.monotonic() - began})
                if number is signal.SIGSTOP:
                    self._stopped.append(victim)

    def let_go(self) -> None:
        """Nothing that it has stopped stays so."""
        for process in self._stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def processes() -> dict[str, list[psutil.Process]]:
    """The processes of the run below this one, by what they are."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            role = next((each for each in ACTORS if f"ray::{each}" in title), None)
            if role is None:
                continue
            found.setdefault(role, []).append(process)
            if role in CHILDREN:
                below = process.children(recursive=True)
                if below:
                    found.setdefault(CHILDREN[role], []).extend(below)
    return found


async def simulated(trials: int, devices: int, folder: Path) -> AsyncIterator[Record]:
    """The records of a run with simulated devices."""
    paths = (dataset_path(None), OTHER_CLASS)
    config = FleetConfig(
        devices=tuple(
            DeviceConfig(name=f"device-{at}", connect=f"recorded:{paths[at % len(paths)]}") for at in range(devices)
        ),
        build=BuildConfig(workers=BUILDERS),
    )
    used = paths[: min(devices, len(paths))]
    entries = tuple(
        SearchTask(each.task, each.sketches, each.abstraction, each.decisions) for path in used for each in load(path)
    )
    with connected(None) as cluster:
        session = TuningSession(
            cluster, config, "run", open_device=opened_slowly, make_worker=partial(SlowBuilder, *used)
        )
        try:
            prints = await session.start_hosts()
            classes = {name: each.device_class.name for name, each in prints.items()}
            plan = SessionPlan("run", "fleet", 0, entries, Limits(trials=trials))
            await session.start_tuning(plan, folder / "records.db", {"network": "bench"}, classes)
            session.begin()
            for entry in entries:
                await session.join(entry)
            async for record in session.records():
                if record is not None:
                    yield record
        finally:
            await session.close()


async def play(kills: int, trials: int, devices: int, seed: int, network: str | None, folder: Path) -> dict[str, Any]:
    monkey = Monkey(kills, trials, random.Random(seed))
    made: list[Record] = []
    gaps: list[float] = []
    coming = (
        simulated(trials, devices, folder)
        if network is None
        else fleet_tune.stream(network, out=folder, trials=trials, seed=seed)
    )
    working = asyncio.ensure_future(monkey.work(made))
    began = last = 0.0
    try:
        async for record in coming:
            now = time.monotonic()
            began = began or now
            gaps.append(now - (last or now))
            last = now
            made.append(record)
    finally:
        monkey.let_go()
        working.cancel()
    with RecordReader(folder / "records.db") as reader:
        stored = list(reader)
        bests = [(task.weight, reader.best(task.id)) for task in reader.tasks()]
    uids = Counter(record.uid for record in stored)
    tried = Counter((record.task_id, record.candidate.id) for record in stored if record.revision == 0)
    heard = Counter(record.uid for record in made)
    return {
        "acknowledged": len(made),
        "lost": sum(uid not in uids for uid in heard),
        "doubled": sum(count - 1 for counts in (uids, tried, heard) for count in counts.values()),
        "trials": tried.total(),
        "best_secs": sum(weight * best.measurement.cost_secs for weight, best in bests if best is not None),
        "without_best": sum(best is None for _, best in bests),
        "secs": last - began,
        "longest_gap_secs": max(gaps, default=0.0),
        "kills": monkey.done,
    }


@click.command()
@click.option("--kills", type=int, required=True)
@click.option("--trials", type=int, required=True)
@click.option("--devices", type=int, default=4)
@click.option("--seed", type=int, default=0)
@click.option("--network", default=None)
def main(kills: int, trials: int, devices: int, seed: int, network: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(play(kills, trials, devices, seed, network, Path(folder)))))


if __name__ == "__main__":
    main()
