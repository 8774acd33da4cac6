"""Every kind of process of a real session is killed and stopped while it tunes: each is noticed, named and replaced,
and no record that was acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.clients.calls import ActorLostError, ask
from actors.clusters.cluster import connected
from actors.run_hosts import RunHosts
from actors.scheduling import heartbeats
from actors.session_plan import SessionPlan
from actors.simulation.slow import opened_slowly
from actors.tuning_session import TuningSession
from fleet_tune.base.config.fleet_file import load_fleet
from fleet_tune.base.domain import Limits, Record
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import ProcessRole, Progress
from fleet_tune.base.search_task import SearchTask
from policies.search.methods.random import RANDOM

DATA = Path(__file__).parents[2] / "bench/data/znver5-2.ftd"
DEADLINE_SECS = 120.0
CANDIDATE_SECS = 0.02
STEP = 15
ROLES = [role.value for role in ProcessRole]

pytestmark = [pytest.mark.timeout(300), pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


class Tuned:
    """A session that tunes recorded tasks, and what it has acknowledged."""

    def __init__(self, session: TuningSession) -> None:
        self.session = session
        self.acknowledged: list[Record] = []

    async def read(self) -> None:
        async for record in self.session.records():
            if record is not None:
                self.acknowledged.append(record)

    async def until(self, condition: Callable[[Progress], bool], what: str) -> Progress:
        deadline = time.monotonic() + DEADLINE_SECS
        while time.monotonic() < deadline:
            progress = await self.session.progress()
            if condition(progress):
                return progress
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {DEADLINE_SECS:g} s: {what}: {progress}")

    async def more(self) -> None:
        """Until a few more trials are made."""
        least = len(self.acknowledged) + STEP
        await self.until(lambda _: len(self.acknowledged) >= least, f"{least} records")

    async def replaced(self, kind: str, victim: int) -> None:
        """Until another process is in the place of the victim."""
        deadline = time.monotonic() + DEADLINE_SECS
        while time.monotonic() < deadline:
            with contextlib.suppress(ActorLostError):
                if await process_of(self.actor(kind)) != victim:
                    return
            await asyncio.sleep(0.02)
        raise AssertionError(f"no other process within {DEADLINE_SECS:g} s: {kind}")

    def actor(self, kind: str) -> Any:
        """The newest actor of a class."""
        hosts = self.session._hosts.actors
        actors = [
            *hosts.builders.values(),
            *hosts.devices.values(),
            *itertools.chain(*self.session._actors.by_role.values()),
        ]
        return next(each for each in reversed(actors) if kind in repr(each))


async def process_of(actor: Any) -> int:
    pid: int = await ask(actor.__ray_call__.remote(lambda _: os.getpid()), DEADLINE_SECS, "pid")
    return pid


@pytest.fixture
async def tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Tuned]:
    """A session without limits, or with those of the test's parameter."""
    # What hangs is ended soon: nothing here is busy for long.
    monkeypatch.setattr(heartbeats, "EVERY_SECS", 0.2)
    monkeypatch.setattr(heartbeats, "SILENT_SECS", 2.0)
    monkeypatch.setattr(heartbeats, "PATIENCE_SECS", 4.0)
    monkeypatch.setattr(heartbeats, "LONG_PATIENCE_SECS", 5.0)
    (tmp_path / "fleet.toml").write_text(f'[[device]]\nname = "a"\nconnect = "recorded:{DATA}"\n[build]\nworkers = 1\n')
    tasks = tuple(SearchTask(each.task, each.sketches, each.abstraction, each.decisions) for each in load(DATA))
    async with contextlib.AsyncExitStack() as stack:
        cluster = stack.enter_context(connected(None))
        hosts = await RunHosts.start(
            cluster, load_fleet(tmp_path / "fleet.toml"), "run", open_device=partial(opened_slowly, CANDIDATE_SECS)
        )
        stack.push_async_callback(hosts.close)
        plan = SessionPlan("run", RANDOM, 0, tasks, getattr(request, "param", Limits()))
        session = await TuningSession.start(hosts, plan, tmp_path / "records.db", {"network": "toy"})
        stack.push_async_callback(session.close)
        session.begin()
        for entry in tasks:
            await session.start_task(entry)
        yield Tuned(session)


async def test_what_dies_between_two_heartbeats_is_told_and_counted(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "EVERY_SECS", 3600.0)  # nobody is asked a second time
    reading = asyncio.ensure_future(tuned.read())
    await tuned.more()
    for kind in ("Recorder", "Builders", "DeviceActor", "Searcher", "Learner"):
        for _ in range(2):
            victim = await process_of(tuned.actor(kind))
            os.kill(victim, signal.SIGKILL)
            await tuned.replaced(kind, victim)
    await tuned.more()
    await tuned.session.stop()
    await reading
    last = await tuned.session.last_progress()
    assert last.restarts == dict.fromkeys([role for role in ROLES if role != "scheduler"], 2)
    for name in ("the recorder", "builder 0", "device a", "searcher 0", "the learner"):
        assert any(f"the process of {name} has ended 2 times" in each.text for each in last.notices)


async def test_every_process_may_die_or_hang_and_nothing_is_lost_or_doubled(tuned: Tuned, tmp_path: Path) -> None:
    reading = asyncio.ensure_future(tuned.read())
    kinds = ("Scheduler", "Recorder", "Builders", "DeviceActor", "Searcher", "Learner")
    names = ("the scheduler", "the recorder", "builder 0", "device a", "searcher 0", "the learner")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        for kind, name in zip(kinds, names, strict=True):
            await tuned.more()
            victim = await process_of(tuned.actor(kind))
            os.kill(victim, number)
            await tuned.until(lambda progress, name=name: name in progress.silent, f"{name} is missed")
            await tuned.until(lambda progress, name=name: name not in progress.silent, f"{name} is back")
            assert await process_of(tuned.actor(kind)) != victim
            told = (
                f"the process of {name} has ended" if number == signal.SIGKILL else f"{name} gave no sign of life for"
            )
            told = "schedules the run was lost" if kind == "Scheduler" else told
            await tuned.until(lambda progress, told=told: any(told in each.text for each in progress.notices), told)
    # Each was killed once and ended once because it hung.
    await tuned.until(lambda progress: progress.restarts == dict.fromkeys(ROLES, 2), "all restarts are counted")
    await tuned.session.stop()
    await reading
    with RecordReader(tmp_path / "records.db") as reader:
        stored = list(reader)
    trials = [record for record in stored if record.revision == 0]
    assert max(Counter(record.candidate.id for record in trials).values()) == 1
    assert [record.seq for record in tuned.acknowledged] == [record.seq for record in stored]
    assert (await tuned.session.progress()).new_trials == len(trials)


@pytest.mark.parametrize("tuned", [Limits(trials=250)], indirect=True)
async def test_a_run_with_kills_accounts_for_all_its_trials(tuned: Tuned) -> None:
    reading = asyncio.ensure_future(tuned.read())
    await tuned.more()
    for kind in ("Scheduler", "Recorder", "DeviceActor", "Searcher", "Builders", "Learner", "Recorder", "Searcher"):
        victim = await process_of(tuned.actor(kind))
        os.kill(victim, signal.SIGKILL)
        await tuned.replaced(kind, victim)
    async with asyncio.timeout(DEADLINE_SECS):
        await reading
    last = await tuned.session.last_progress()
    assert last.phase == "finished"
    assert last.new_trials + sum(each.trials for each in last.not_tried) == 250
    assert last.restarts == {**dict.fromkeys(ROLES, 1), "recorder": 2, "searcher": 2}
