"""The fleet file while a run goes on: who joins and who leaves, and what people are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from actors.tuning_session import TuningSession
from devices.rpc.tracker import TrackerError
from fleet_tune.base.config.fleet_file import DeviceConfig, Library, load_fleet
from fleet_tune.base.errors import FleetOrdersError, UserError
from fleet_tune.runs.fleet import tracker_boards
from fleet_tune.runs.fleet.fleet_watch import FleetWatch, changes


def entry(name: str, port: int = 9090, **keys: str) -> str:
    more = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    return f'[[device]]\nname = "{name}"\nconnect = "10.0.0.1:{port}"\n{more}'


class Session:
    """Stands in for a session: devices come and go as they are told to. ``out_of_use``, ``unfit``, ``hanging``: names
    of those that people want out of use, that cannot take part, and whose host hangs."""

    def __init__(self, *devices: DeviceConfig) -> None:
        self.devices = {device.name: device for device in devices}
        self.done: list[tuple[str, str]] = []
        self.told: list[str] = []
        self.out_of_use: set[str] = set()
        self.unfit: set[str] = set()
        self.hanging: set[str] = set()
        self.orders_damaged = False

    async def admit_device(self, device: DeviceConfig) -> bool:
        if self.orders_damaged:
            raise FleetOrdersError("the orders cannot be read", "mend them")
        if device.name in self.hanging:
            await asyncio.Event().wait()
        if device.name in self.unfit:
            raise UserError(f"device {device.name} cannot take part", "run again")
        if device.name in self.out_of_use:
            return False
        self.devices[device.name] = device
        self.done.append(("joins", device.name))
        return True

    async def remove_device(self, name: str, reason: str) -> None:
        del self.devices[name]
        self.done.append(("leaves", f"{name}: {reason}"))

    def notice(self, text: str, _well: bool) -> None:
        self.told.append(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(entry("a") + entry("b", 9091))
    return path


class Watched:
    """A file that is watched for a session, of which it has all devices, or those with these names."""

    def __init__(self, file: Path, *names: str, library: Library | None = None) -> None:
        fleet = load_fleet(file).with_library(library)
        if names:
            fleet = fleet.only(names)
        self.file = file
        self.session = Session(*fleet.devices)
        self.watch = FleetWatch(fleet)

    async def look(self, *texts: str) -> list[tuple[str, str]]:
        """What the session did after the file was written anew, if it was; and what people were told."""
        if texts:
            self.file.write_text("".join(texts))
        self.session.done.clear()
        self.told = [text for text, _ in self.watch.look()]
        await self.watch.apply(cast(TuningSession, cast(Any, self.session)))
        return list(self.session.done)


def test_an_entry_that_has_changed_leaves_and_joins(file: Path) -> None:
    fleet = load_fleet(file)
    there = {device.name: device for device in fleet.devices}
    assert changes(there, fleet).leave == {}
    file.write_text(entry("b", 9092) + entry("c"))
    found = changes(there, load_fleet(file))
    assert found.leave == {
        "a": "it is no longer in the fleet file",
        "b": "its entry in the fleet file has changed",
    }
    assert [(device.name, device.connect) for device in found.join] == [("b", "10.0.0.1:9092"), ("c", "10.0.0.1:9090")]


async def test_a_library_is_for_devices_that_join_too(tmp_path: Path) -> None:
    file, board = tmp_path / "fleet.toml", entry("board")
    file.write_text('[[device]]\nname = "here"\n' + board)
    watched = Watched(file, library="onednn")
    assert [each.library for each in watched.session.devices.values()] == ["onednn", None]
    assert await watched.look(board) == [("leaves", "here: it is no longer in the fleet file")]
    assert await watched.look('[[device]]\nname = "cpu"\nthreads = 1\n', board) == [("joins", "cpu")]
    assert watched.session.devices["cpu"].library == "onednn"


async def test_devices_join_and_leave_as_the_file_says(file: Path) -> None:
    watched = Watched(file)
    assert await watched.look() == []
    assert await watched.look(entry("b", 9091), entry("c", 9092)) == [
        ("leaves", "a: it is no longer in the fleet file"),
        ("joins", "c"),
    ]
    assert await watched.look() == []
    # What else the file says is for the next run.
    devices = entry("b", 9091), entry("c", 9092)
    assert await watched.look(*devices, "[build]\nworkers = 1\n") == []
    assert watched.told == ["[build] of the fleet file changed: that counts from the next run on"]
    assert await watched.look(*devices, "[build]\nworkers = 2\n") == []
    assert watched.told == []
    assert await watched.look(*devices, "[build]\nworkers = 2\n[measure]\nrealtime = false\n") == []
    assert watched.told == ["[build] and [measure] of the fleet file changed: that counts from the next run on"]
    assert await watched.look(*devices) == []
    assert watched.told == [], "as the run began with it"


async def test_a_run_with_some_devices_of_the_file_gets_no_others(file: Path) -> None:
    watched = Watched(file, "a")
    assert list(watched.session.devices) == ["a"]
    assert await watched.look(entry("a"), entry("b", 9091), entry("c", 9092)) == []
    assert await watched.look(entry("a", 9093), entry("c", 9092)) == [
        ("leaves", "a: its entry in the fleet file has changed"),
        ("joins", "a"),
    ]
    assert await watched.look(entry("c", 9092)) == [("leaves", "a: it is no longer in the fleet file")]


async def test_a_device_whose_host_hangs_holds_up_nobody(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet_tune.runs.fleet.fleet_watch.LOOK_SECS", 0.01)
    watched = Watched(file)
    watched.session.hanging = {"hangs"}
    both = entry("a"), entry("b", 9091), entry("hangs", 9092)
    assert await watched.look(*both) == []
    assert await watched.look(*both, entry("c", 9093)) == [("joins", "c")]
    assert await watched.look(entry("a"), entry("hangs", 9092)) == [
        ("leaves", "b: it is no longer in the fleet file"),
        ("leaves", "c: it is no longer in the fleet file"),
    ]


async def test_what_was_changed_while_the_run_was_starting_is_seen(file: Path) -> None:
    fleet = load_fleet(file)
    file.write_text(entry("a") + entry("b", 9091) + entry("c", 9092))
    watch, session = FleetWatch(fleet), Session(*fleet.devices)
    watch.look()
    await watch.apply(cast(TuningSession, cast(Any, session)))
    assert session.done == [("joins", "c")]


async def test_a_file_that_is_wrong_is_told_once_and_the_last_good_one_counts(file: Path) -> None:
    watched = Watched(file)
    assert await watched.look(entry("b", 9091), "[[device]]\n") == []
    problem = f"{file}, line 4: this [[device]] has no name; the devices stay as they were"
    assert watched.told == [problem]
    assert await watched.look() == []
    assert watched.told == []
    assert await watched.look(entry("b", 9091), "[[device]]\n\n") == []  # as wrong as before
    assert watched.told == []
    file.unlink()
    assert await watched.look() == []
    assert watched.told == [
        f"cannot read the fleet file {file}: No such file or directory; the devices stay as they were"
    ]
    assert await watched.look(entry("b", 9091)) == [("leaves", "a: it is no longer in the fleet file")]
    assert watched.told == ["the fleet file is right again"]


async def test_a_device_that_cannot_take_part_is_told_once_until_its_entry_changes(file: Path) -> None:
    watched = Watched(file)
    watched.session.unfit.add("c")
    assert await watched.look(file.read_text(), entry("c", 9092)) == []
    assert await watched.look() == []
    assert watched.session.told == ["device c cannot take part; run again"]
    watched.session.unfit.clear()
    assert await watched.look() == []
    assert await watched.look(entry("a"), entry("b", 9091), entry("c", 9093)) == [("joins", "c")]


async def test_devices_join_side_by_side_when_the_others_have_left(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(file)
    all_begun = asyncio.Barrier(3)
    admit_device = watched.session.admit_device

    async def slowly(device: DeviceConfig) -> bool:
        """Each answers when all of them have begun."""
        assert set(watched.session.devices) <= {"c", "d", "e"}
        async with asyncio.timeout(10.0):
            await all_begun.wait()
        return await admit_device(device)

    monkeypatch.setattr(watched.session, "admit_device", slowly)
    watched.session.unfit.add("d")
    done = await watched.look(entry("c"), entry("d", 9091), entry("e", 9092))
    assert [what for what, _ in done] == ["leaves", "leaves", "joins", "joins"]
    assert set(watched.session.devices) == {"c", "e"}
    assert "device d cannot take part; run again" in watched.session.told


async def test_a_device_that_is_out_of_use_joins_when_it_is_resumed(file: Path) -> None:
    watched = Watched(file)
    watched.session.out_of_use.add("c")
    assert await watched.look(file.read_text(), entry("c", 9092)) == []
    watched.session.out_of_use.clear()
    watched.session.orders_damaged = True
    assert await watched.look() == []
    watched.session.orders_damaged = False
    assert await watched.look() == [("joins", "c")]


BOARDS = 'connect = "tracker://10.0.0.9:9190/orin"\ncount = "all"\n'


async def test_boards_that_a_tracker_lists_join(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count: list[int | TrackerError] = [2]

    def listed(host: str, port: int, key: str, _timeout_secs: float) -> int:
        assert (host, port, key) == ("10.0.0.9", 9190, "orin")
        if isinstance(count[0], TrackerError):
            raise count[0]
        return count[0]

    monkeypatch.setattr(tracker_boards, "listed", listed)
    monkeypatch.setattr("fleet_tune.runs.fleet.fleet_watch._ASK_EVERY", 1)
    file.write_text(entry("a") + f'[[device]]\nname = "orin"\n{BOARDS}')
    fleet = tracker_boards.with_boards(load_fleet(file))
    assert [device.name for device in fleet.devices] == ["a", "orin-1", "orin-2"]
    assert fleet.where("orin-2", "connect") == f"{file}, line 6"
    watched = Watched(file)  # when it began, the tracker was away
    assert await watched.look() == []  # a server that begins anew is listed twice for a moment
    assert await watched.look() == [("joins", "orin-2")]
    count[0] = 3
    assert await watched.look() == []
    count[0] = 4
    assert await watched.look() == []
    assert await watched.look() == [("joins", "orin-3"), ("joins", "orin-4")]
    # Those that it lists no more are lost, as others are, and not removed.
    for now in (1, TrackerError("it is away")):
        count[0] = now
        assert await watched.look() == []
    # Neither does a file that is written anew say anything of them.
    orins = f'[[device]]\nname = "orin"\n{BOARDS}'
    assert await watched.look(entry("a"), orins, entry("b", 9091)) == [("joins", "b")]
    changed = "its entry in the fleet file has changed"
    assert await watched.look(entry("a"), orins, "probe_secs = 300\n") == [
        *(("leaves", f"orin-{number}: {changed}") for number in range(1, 5)),
        ("leaves", "b: it is no longer in the fleet file"),
        *(("joins", f"orin-{number}") for number in range(1, 5)),
    ]
    assert len(await watched.look(entry("a"), orins)) == 8
    count[0] = 10_000
    assert await watched.look() == []
    assert len(await watched.look()) == 252
    # The entry goes, and all of them with it.
    assert len(await watched.look(entry("a"))) == 256
