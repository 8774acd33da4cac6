"""What a run gives to the store that runs share and takes from it each minute, where something is in the way."""

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
from fleet_tune.runs.interruption import beside
from fleet_tune.runs.run import Run

MINUTE = ", and is tried again every minute: "


class Step:
    """What a run does each minute. ``error``: why that fails."""

    __name__ = "step"  # what its thread is called
    error: Exception | None = None
    count = 0

    def __call__(self, *, with_efforts: bool = False) -> None:
        assert not with_efforts, "what runs have spent is of no use while they go on"
        self.count += 1
        if self.error is not None:
            raise self.error


TEAM = "postgresql://alice@db.example/kernels"


def beginning(folder: Path, monkeypatch: pytest.MonkeyPatch, store: str | None, **met: Any) -> tuple[Run, list[str]]:
    """A run that meets its team so, and what it says that it does."""
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    monkeypatch.setattr("fleet_tune.runs.run.met", Mock(**met, __name__="met"))
    said: list[str] = []
    run = Run(run_request("net.onnx", out=folder / "out", store=store), lambda progress: said.append(progress.doing))
    run._store = run._usable_store()
    run._announce()
    return run, said


async def test_everything_else_goes_on_beside_the_first_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    run, said = beginning(tmp_path, monkeypatch, TEAM, side_effect=lambda _: goes_on.wait(10.0))
    meeting = asyncio.create_task(run._meet_team())
    await asyncio.sleep(0)
    goes_on.set()  # which a loop that is blocked comes to when the meeting is over
    await meeting
    assert run._team is True, "the meeting saw that others go on"
    assert said == [f"importing the network, starting the devices, meeting the store {TEAM}"]


async def test_a_team_that_refuses_ends_a_run_that_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = RecordStoreError("the store refuses this key", "look at it")
    run, _ = beginning(tmp_path, monkeypatch, TEAM, side_effect=refused)
    with pytest.raises(RecordStoreError, match="refuses this key"):
        await run._meet_team()
    monkeypatch.setenv("FLEET_TUNE_STORE", TEAM)
    run, _ = beginning(tmp_path, monkeypatch, None, side_effect=refused)
    await run._meet_team()
    assert run._store is None, "nobody has named it: the run goes without"


class Sharing:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fleet_tune.runs.run._GIVE_EVERY_SECS", 0.001)
        self.told: list[str] = []
        self.give, self.meet, self.take_new = Step(), Step(), Step()
        self.run = Run(run_request("net.onnx", out=folder / "out", store=""), None)
        self.run._session = cast(TuningSession, cast(Any, self))
        self.run._giving = self.run._team = cast(Any, self)
        monkeypatch.setattr(self.run, "_take_new", self.take_new)

    def notice(self, text: str, well: bool) -> None:
        assert not well
        self.told.append(text)

    async def minutes(self) -> None:
        """Some have passed."""
        until = self.take_new.count + 3
        async with asyncio.timeout(10.0), beside(self.run._share_regularly()):
            while self.take_new.count < until:
                await asyncio.sleep(0.001)


@pytest.fixture
async def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sharing:
    return Sharing(tmp_path, monkeypatch)


async def test_while_the_teams_server_is_away_what_the_copy_has_is_taken_and_that_is_told_once(
    sharing: Sharing,
) -> None:
    sharing.meet.error = StoreUnreachableError("db.example does not answer", "wait")
    await sharing.minutes()
    told = f"the server of the team's store is not met{MINUTE}db.example does not answer; wait"
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
        "what is measured does not come into the store",
        "what others have found is not taken from the store",
    ]
    assert sharing.meet.count >= 2
    sharing.told.clear()
    for step in (sharing.give, sharing.take_new):
        step.error = None
    await sharing.minutes()
    assert sharing.told == []
