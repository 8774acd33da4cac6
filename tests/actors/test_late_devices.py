"""Devices that do not answer when a run begins, or are out of use then: who joins later, who is missed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from actors.clients.calls import ask
from actors.clusters.cluster import connected
from actors.device_orders import note_run, out_of_use
from actors.run_hosts import AbsentDevices, RunHosts, absent_devices
from actors.scheduling import heartbeats
from actors.session_plan import SessionPlan
from actors.tuning_session import TuningSession
from devices.protocol import Device
from devices.simulated.simulated import SIMULATED_CPU, SimulatedBuilder, SimulatedDevice
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig, load_fleet
from fleet_tune.base.device_state import Admin
from fleet_tune.base.domain import DeviceClass, Fingerprint, Limits, Record
from fleet_tune.base.errors import DeviceUnreachableError, FleetFileError, UserError
from fleet_tune.base.records.orders import FleetOrders, orders_path
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Progress
from fleet_tune.runs.interruption import beside
from policies.measuring.adaptive_stopping import decide
from policies.search.methods.random import RANDOM
from tests.actors.conftest import CLASS, search_task

ORIN = Fingerprint(DeviceClass("orin", "{}"), SIMULATED_CPU, "cpu", 8, "none", 1e-3)


@pytest.fixture
def fleet(tmp_path: Path) -> FleetConfig:
    """A fleet file with the devices a, b (both said to be of the class orin) and c."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[[device]]\nname = "a"\nconnect = "10.0.0.1:9090"\ndevice_class = "orin"\n'
        '[[device]]\nname = "b"\nconnect = "10.0.0.2:9090"\ndevice_class = "orin"\n'
        '[[device]]\nname = "c"\nconnect = "10.0.0.3:9090"\n'
    )
    return load_fleet(path)


def gone(name: str) -> DeviceUnreachableError:
    return DeviceUnreachableError(name, "no route to host")


def absent(
    fleet: FleetConfig, prints: dict[str, Fingerprint], errors: dict[str, DeviceUnreachableError], unused: set[str]
) -> AbsentDevices:
    """All three have a process."""
    return absent_devices(fleet, {"a", "b", "c"}, prints, errors, unused)


def test_a_device_of_a_class_that_another_one_shows_joins_later(fleet: FleetConfig) -> None:
    found = absent(fleet, {"a": ORIN, "c": ORIN}, {"b": gone("b")}, set())
    assert found.expected == {"b": "orin"}
    assert found.unknown == frozenset()


def test_a_device_of_which_nothing_is_known_is_missed_and_waited_for(fleet: FleetConfig) -> None:
    found = absent(fleet, {"a": ORIN, "b": ORIN}, {"c": gone("c")}, set())
    assert found.expected == {"c": ""}
    assert found.notices == ("device c: no route to host: the run begins without it, and takes it when it answers",)


def test_devices_of_a_class_that_nobody_shows_are_waited_for(fleet: FleetConfig) -> None:
    nano = dataclasses.replace(ORIN, device_class=DeviceClass("nano", "{}"))
    assert absent(fleet, {"c": nano}, {"a": gone("a"), "b": gone("b")}, set()).expected == {"a": "", "b": ""}


def test_a_fleet_of_which_no_device_answers_is_missed_with_a_line(fleet: FleetConfig) -> None:
    with pytest.raises(FleetFileError, match=r"fleet\.toml, line 3: device 'a' does not answer: .*no route to host"):
        absent(fleet, {}, {"a": gone("a"), "b": gone("b"), "c": gone("c")}, set())


def test_a_device_out_of_use_is_not_missed(fleet: FleetConfig) -> None:
    found = absent(fleet, {"a": ORIN}, {}, {"b", "c"})
    assert found.notices == (
        "device b is out of use: it joins when it is resumed",
        "device c is out of use: it is asked what it is when it is resumed",
    )
    assert found.expected == {"b": "orin"}  # joins when it is resumed
    assert found.unknown == {"c"}


def test_a_fleet_that_is_out_of_use_altogether_says_so(fleet: FleetConfig) -> None:
    with pytest.raises(FleetFileError, match=r"every device of .*fleet\.toml is out of use: a, b, c.*resume"):
        absent(fleet, {}, {}, {"a", "b", "c"})


async def test_who_is_out_of_use_is_what_the_orders_say(fleet: FleetConfig, tmp_path: Path) -> None:
    assert await out_of_use(fleet, "abc") == set()
    orders = FleetOrders(orders_path(tmp_path / "fleet.toml"))
    orders.give("a", Admin.RETIRED, "")
    orders.give("b", Admin.DRAINING, "")
    orders.give("b", Admin.ACTIVE, "")
    orders.give("of another time", Admin.RETIRED, "")
    assert await out_of_use(fleet, "abc") == {"a"}


async def test_a_run_is_noted_for_the_commands_that_look_at_the_fleet(fleet: FleetConfig, tmp_path: Path) -> None:
    records = tmp_path / "records.db"
    records.touch()
    path = await note_run(fleet, "run", records)
    assert path == orders_path(tmp_path / "fleet.toml")
    assert FleetOrders(path).last_records() == records


async def test_a_file_of_orders_that_cannot_be_written_does_not_stop_a_run(fleet: FleetConfig, tmp_path: Path) -> None:
    orders_path(tmp_path / "fleet.toml").mkdir()
    assert await note_run(fleet, "run", tmp_path / "records.db") is not None


LATE = DeviceClass("late", '{"kind":"llvm","mcpu":"late"}')
CLASSES = {"a": CLASS, "b": CLASS, "late-1": LATE, "late-2": LATE, "odd": DeviceClass("odd", "{}")}
DEADLINE_SECS = 120.0
EXTENT = 2**10 * 3**3
"""Thousands of candidates, so that no busy machine comes to their end, and few enough to be listed in a moment."""


class AtLast(SimulatedDevice):
    """Answers once a file is there."""

    def __init__(self, there: Path, device_class: DeviceClass) -> None:
        super().__init__(device_class, decide=decide, seed=7)
        self._there = there

    def ping(self) -> float:
        self._look()
        return super().ping()

    def fingerprint(self) -> Fingerprint:
        self._look()
        return super().fingerprint()

    def _look(self) -> None:
        if not self._there.exists():
            raise DeviceUnreachableError(self._there.name, "no route to host")


@contextlib.contextmanager
def opened_at_last(folder: Path, config: DeviceConfig, realtime: bool) -> Iterator[Device]:  # noqa: ARG001
    """A device that answers as soon as there is a file of its name in ``folder``."""
    yield AtLast(folder / config.name, CLASSES[config.name])


@dataclass
class Tuned:
    """A session of one task for each class that answers, and of none for the class that is odd; ``there``: where a file
    has a device answer."""

    session: TuningSession
    there: Path
    seen: list[Record] = field(default_factory=list)

    async def prepare(self) -> None:
        """What a run does when a class arrives."""
        while True:
            _, fingerprint = await self.session.next_class()
            name = fingerprint.device_class.name
            if name == "odd":
                await self.session.refuse_class(name, "the network is not for it")
                continue
            entry = search_task("a", extent=EXTENT, device_class=fingerprint.device_class)
            assert await self.session.add_class([entry], {})
            await self.session.start_task(entry)

    async def read(self) -> None:
        async for record in self.session.records():
            if record is not None:
                self.seen.append(record)

    async def until(self, condition: Callable[[Progress], bool]) -> Progress:
        async with asyncio.timeout(DEADLINE_SECS):
            while True:
                progress = await self.session.progress()
                if condition(progress):
                    return progress
                await asyncio.sleep(0.05)

    async def until_told(self, text: str) -> None:
        await self.until(lambda progress: any(text in each.text for each in progress.notices))

    async def until_measured(self, device: str) -> None:
        """New records of a device have come."""
        before = len(self.seen)
        await self.until(lambda _: any(record.device_id == device for record in self.seen[before:]))


@pytest.fixture
async def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tuned]:
    monkeypatch.setattr("actors.clients.device._ANSWER_POLL_SECS", 0.2)
    monkeypatch.setattr("actors.scheduling.supervisor._REST_SECS", 0.2)
    monkeypatch.setattr(heartbeats, "EVERY_SECS", 0.2)
    devices = "".join(f'[[device]]\nname = "{name}"\nconnect = "{name}:9090"\n' for name in ("a", "b", "late-1", "odd"))
    (tmp_path / "fleet.toml").write_text(devices + "[build]\nworkers = 1\n")
    (tmp_path / "a").touch()
    opened = partial(opened_at_last, tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(connected(None))
        hosts = await RunHosts.start(
            cluster,
            load_fleet(tmp_path / "fleet.toml"),
            "run",
            open_device=opened,
            make_worker=partial(SimulatedBuilder, seed=99),
        )
        stack.push_async_callback(hosts.close)
        assert set(hosts.fingerprints) == {"a"}
        entry = search_task("a", extent=EXTENT)
        plan = SessionPlan("run", RANDOM, 0, (entry,), Limits())
        session = await TuningSession.start(hosts, plan, tmp_path / "records.db", {"network": "toy"})
        stack.push_async_callback(session.close)
        session.begin()
        await session.start_task(entry)
        made = Tuned(session, tmp_path)
        async with beside(made.prepare()), beside(made.read()):
            yield made


@pytest.mark.timeout(300)
@pytest.mark.long
async def test_devices_and_whole_classes_join_a_run_that_goes_on(tuned: Tuned, tmp_path: Path) -> None:
    progress = await tuned.until(lambda progress: progress.trials > 0)
    assert progress.devices == {"a": "good", "b": "joining", "late-1": "joining", "odd": "joining"}

    # One of a class that is there.
    (tuned.there / "b").touch()
    await tuned.until_measured("b")
    await tuned.until_told("device b answers: it is of class simulated")

    # One for which nothing was prepared.
    (tuned.there / "late-1").touch()
    await tuned.until_measured("late-1")
    await tuned.until_told("device late-1 answers: it is of class late, for which the network is prepared now")
    await tuned.until_told("class late joins: 1 tasks are tuned for it as they are described")
    assert {name: len(each) for name, each in tuned.session.members().items()} == {"simulated": 2, "late": 1}

    # One for which it cannot be prepared.
    (tuned.there / "odd").touch()
    await tuned.until_told("device odd is not used: class odd does not join this run: the network is not for it")

    # Whoever takes the place of a scheduler that is lost knows who has joined.
    os.kill(await process_of(tuned.session, "Scheduler"), signal.SIGKILL)
    await tuned.until_told("the process that schedules the run was lost")
    for device in ("a", "b", "late-1"):
        await tuned.until_measured(device)
    progress = await tuned.until(lambda progress: progress.phase == "tuning")
    assert {task.device_class for task in progress.tasks} == {"simulated", "late"}
    assert progress.devices == {"a": "good", "b": "good", "late-1": "good", "odd": "joining"}

    # The searcher that begins anew finds the tasks of the new class in the roster, and its records.
    os.kill(await process_of(tuned.session, "Searcher"), signal.SIGKILL)
    await tuned.until_told("the process of searcher 0 has ended")
    await tuned.until_measured("late-1")

    # Devices that the fleet file names now, and no longer.
    (tuned.there / "late-2").touch()
    assert await tuned.session.admit_device(DeviceConfig(name="late-2", connect="late-2:9090"))
    await tuned.until_measured("late-2")
    for name in ("a", "late-1", "odd"):
        await tuned.session.remove_device(name, "it is no longer in the fleet file")
    await tuned.until_told("device late-1 leaves: it is no longer in the fleet file")
    for device in ("b", "late-2"):
        await tuned.until_measured(device)
    progress = await tuned.session.progress()
    assert progress.devices == {"b": "good", "late-2": "good"}
    assert not [each.text for each in progress.notices if "device late-1 is" in each.text]
    with pytest.raises(UserError, match="device here shares the cores of this machine"):
        await tuned.session.admit_device(DeviceConfig(name="here"))
    assert set(tuned.session.devices) == {"b", "late-2"}
    await tuned.session.stop()
    with RecordReader(tmp_path / "records.db") as reader:
        assert {task.device_class.name for task in reader.tasks()} == {"simulated", "late"}
        trials = [record.candidate.id for record in reader if record.revision == 0]
    assert len(set(trials)) == len(trials)


async def process_of(session: TuningSession, kind: str) -> int:
    """The process of the newest actor of a class."""
    *_, actor = (each for each in itertools.chain(*session._actors.by_role.values()) if kind in repr(each))
    pid: int = await ask(actor.__ray_call__.remote(lambda _: os.getpid()), DEADLINE_SECS, "pid")
    return pid
