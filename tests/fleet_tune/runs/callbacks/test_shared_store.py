"""Exchange of a run with the shared store each minute, with faults."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from actors.tuning_session import TuningSession
from fleet_tune.base.config.request import run_request
from fleet_tune.base.errors import RecorderLostError, RecordStoreError, StoreUnreachableError
from fleet_tune.runs.callbacks.shared_store import SharedStore
from fleet_tune.runs.interruption import Interruption, beside
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.run_callback import OngoingTuning

MINUTE = ", which is retried every minute: "


class Step:
    """A step of the exchange; it fails with ``error``, if set."""

    __name__ = "step"  # what its thread is called
    error: Exception | None = None
    count = 0

    def __call__(self, *, with_efforts: bool = False) -> None:
        assert not with_efforts, "what runs have spent is of no use while they go on"
        self.count += 1
        if self.error is not None:
            raise self.error


TEAM = "postgresql://alice@db.example/kernels"


def beginning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, store: str | None, **behavior: Any
) -> tuple[SharedStore, list[str]]:
    """The store of a run that synchronizes with its team so, and what the run says that it does."""
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    monkeypatch.setattr("fleet_tune.runs.callbacks.shared_store.sync_team", Mock(**behavior, __name__="sync_team"))
    said: list[str] = []
    request = run_request("net.onnx", out=folder / "out", store=store)
    reporter = ProgressReporter(request.limits, lambda progress: said.append(progress.doing))
    shared = SharedStore(request, "run", reporter, Interruption())
    shared.before()
    reporter.announce()
    return shared, said


async def test_everything_else_goes_on_beside_the_first_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    shared, said = beginning(tmp_path, monkeypatch, TEAM, side_effect=lambda _: goes_on.wait(10.0))
    meeting = asyncio.create_task(shared.synchronize())
    await asyncio.sleep(0)
    goes_on.set()  # which a loop that is blocked comes to when the meeting is over
    await meeting
    assert shared._team is True, "the meeting saw that others go on"
    assert said == [f"importing the network, starting the devices, synchronizing the store {TEAM}"]


async def test_a_team_that_refuses_ends_a_run_that_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = RecordStoreError("the store refuses this key", "look at it")
    shared, _ = beginning(tmp_path, monkeypatch, TEAM, side_effect=refused)
    with pytest.raises(RecordStoreError, match="refuses this key"):
        await shared.synchronize()
    monkeypatch.setenv("FLEET_TUNE_STORE", TEAM)
    shared, _ = beginning(tmp_path, monkeypatch, None, side_effect=refused)
    await shared.synchronize()
    assert shared.path is None, "nobody has named it: the run goes without"


class Sharing:
    """A run that shares its records, and the notices of its session."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fleet_tune.runs.callbacks.shared_store.EXCHANGE_SECS", 0.001)
        self.told: list[str] = []
        self.give, self.sync, self.take_new = Step(), Step(), Step()
        request = run_request("net.onnx", out=folder / "out", store="")
        self.store = SharedStore(request, "run", ProgressReporter(request.limits, None), Interruption())
        self.store._uploader = self.store._team = self.store._subscription = cast(Any, self)
        monkeypatch.setattr(self.store, "_take_new", lambda *_: self.take_new())

    @property
    def session(self) -> TuningSession:
        return cast(TuningSession, cast(Any, self))

    def notice(self, text: str, well: bool) -> None:
        assert not well
        self.told.append(text)

    async def minutes(self) -> None:
        """Some have passed."""
        until = self.take_new.count + 3
        async with asyncio.timeout(10.0), beside(self.store.during(cast(OngoingTuning, cast(Any, self)))):
            while self.take_new.count < until:
                await asyncio.sleep(0.001)


@pytest.fixture
async def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sharing:
    return Sharing(tmp_path, monkeypatch)


async def test_while_the_teams_server_is_away_what_the_copy_has_is_taken_and_that_is_told_once(
    sharing: Sharing,
) -> None:
    sharing.sync.error = StoreUnreachableError("db.example does not answer", "wait")
    await sharing.minutes()
    told = f"the team's store is not synchronized with its server{MINUTE}db.example does not answer; wait"
    assert sharing.told == [told]
    assert sharing.give.count >= 3


@pytest.mark.parametrize(
    "error", [RecordStoreError("it is damaged", "mend it"), RecorderLostError("it is gone", "run again"), OSError("no")]
)
async def test_whatever_a_step_fails_of_the_others_are_taken_and_it_is_tried_again(
    error: Exception, sharing: Sharing
) -> None:
    for step in (sharing.give, sharing.take_new):
        step.error = error
    await sharing.minutes()
    assert [text.partition(MINUTE)[0] for text in sharing.told] == [
        "new records are not uploaded to the store",
        "records of other runs are not taken from the store",
    ]
    assert sharing.sync.count >= 2
    sharing.told.clear()
    for step in (sharing.give, sharing.take_new):
        step.error = None
    await sharing.minutes()
    assert sharing.told == []
