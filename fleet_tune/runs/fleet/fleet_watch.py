"""The fleet file during a run: devices that are added to the file join the run, and devices that are removed leave it.
So do machines of the cluster.

Only changes of devices count. Changes of the tables ``[build]`` and ``[measure]`` take effect in the next run, and a
notice says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from actors.clients.threads import in_thread
from actors.tuning_session import TuningSession
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig, load_fleet, with_boards_of
from fleet_tune.base.errors import ClusterError, FleetFileError, FleetOrdersError, UserError
from fleet_tune.runs.fleet.tracker_boards import with_boards

LOOK_SECS = 2.0
_ASK_EVERY = 5  # a tracker is asked for its boards at every fifth look


@dataclass(frozen=True)
class FleetChanges:
    """Changes from the devices of a run to those of the fleet file."""

    leave: Mapping[str, str] = field(default_factory=dict)
    """Names of the devices that leave, each with the reason."""
    join: tuple[DeviceConfig, ...] = ()


def changes(there: Mapping[str, DeviceConfig], wanted: FleetConfig) -> FleetChanges:
    """Compare the devices that are ``there`` with the wanted ones. A device whose entry has changed leaves, and joins
    with its new entry."""
    entries = {device.name: device for device in wanted.devices}
    leave = {}
    for name, device in there.items():
        if name not in entries:
            leave[name] = "it is no longer in the fleet file"
        elif entries[name] != device:
            leave[name] = "its entry in the fleet file has changed"
    join = tuple(device for name, device in entries.items() if name not in there or name in leave)
    return FleetChanges(leave, join)


class FleetWatch:
    """Follows a fleet file. A change since the file was read is seen at the first look.

    Args:
        fleet: the fleet with which the run began.
    """

    def __init__(self, fleet: FleetConfig) -> None:
        self._fleet = fleet
        self._library = fleet.library
        self._seen = self._signature() if self._is_as_read() else None
        self._problem = ""
        self._began_with = _tables(fleet)
        self._for_later: list[str] = []  # changed tables for which a notice was given
        self._looks = 0
        self._listed = fleet  # the fleet with the boards that trackers listed at the last look
        self._refused: dict[str, DeviceConfig] = {}  # devices that cannot take part, for which a notice was given
        self._joining: dict[str, asyncio.Task[None]] = {}

    async def follow(self, session: TuningSession) -> None:
        """Keep the devices of the session equal to the devices of the file, until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECS)
                for text, well in await in_thread(self.look):
                    session.notice(text, well)
                await self.apply(session)
                with contextlib.suppress(ClusterError):  # a lost cluster ends the run in another place
                    await session.follow_nodes()
        finally:
            for joining in self._joining.values():
                joining.cancel()

    def look(self) -> list[tuple[str, bool]]:
        """Read the file if it has changed, and at every fifth look ask trackers for their boards. Return notices, each
        with false if it reports a problem: a file that is wrong (the last good one stays in use), a file that is right
        again, and changes that take effect in the next run."""
        told: list[tuple[str, bool]] = []
        signature = self._signature()
        if signature != self._seen:
            self._seen = signature
            told += self._read()
        self._looks += 1
        if self._looks % _ASK_EVERY == 0:
            self._count_boards()
        return told

    def _count_boards(self) -> None:
        """Add boards that trackers list at two looks in a row: a server that restarts is listed twice for a moment. A
        board that is no longer listed counts as a lost device, which may come back."""
        listed_before, self._listed = self._listed, with_boards(self._fleet)
        if set(self._names(self._listed)) <= set(self._names(listed_before)):
            self._fleet = self._listed

    async def apply(self, session: TuningSession) -> None:
        """Remove devices, then add devices concurrently: the process of a new device may answer late, or only after
        minutes on a host that hangs."""
        wanted = changes(session.devices, self._fleet)
        for name, reason in wanted.leave.items():
            joining = self._joining.pop(name, None)
            if joining is not None:
                joining.cancel()
            await session.remove_device(name, reason)
        for device in wanted.join:
            if device.name not in self._joining and self._refused.get(device.name) != device:
                self._joining[device.name] = asyncio.create_task(self._join(session, device))
        if self._joining:
            done, _ = await asyncio.wait(self._joining.values(), timeout=LOOK_SECS)
            self._joining = {name: joining for name, joining in self._joining.items() if joining not in done}
            for joining in done:
                joining.result()

    async def _join(self, session: TuningSession, device: DeviceConfig) -> None:
        try:
            await session.admit_device(device)
        except (FleetOrdersError, ClusterError):
            return  # a later look tries again
        except UserError as error:
            self._refused[device.name] = device
            session.notice(str(error), False)

    def _read(self) -> list[tuple[str, bool]]:
        """Read the file and use it from now on, unless it is wrong. Return notices as :meth:`look` does."""
        assert self._fleet.source is not None
        last_problem = self._problem
        try:
            read = load_fleet(self._fleet.source.path)
        except FleetFileError as error:
            self._problem = error.problem
            is_new = error.problem != last_problem
            return [(f"{error.problem}; the devices stay as they were", False)] if is_new else []
        self._problem = ""
        if self._fleet.chosen is not None:
            read = read.only(self._fleet.chosen)
        with contextlib.suppress(FleetFileError):  # the last CPU device of this machine has left; another may join
            read = read.with_library(self._library)
        self._fleet = with_boards(with_boards_of(read, self._fleet))
        right_again = [("the fleet file is right again", True)] if last_problem else []
        return [*right_again, *self._changed_tables(read)]

    def _changed_tables(self, read: FleetConfig) -> list[tuple[str, bool]]:
        """Return a notice of the tables that have changed since the run began, unless it was given before."""
        changed = [name for name, table in _tables(read).items() if table != self._began_with[name]]
        is_new, self._for_later = changed != self._for_later, changed
        if not changed or not is_new:
            return []
        return [(f"{' and '.join(changed)} of the fleet file changed: that counts from the next run on", True)]

    @staticmethod
    def _names(fleet: FleetConfig) -> list[str]:
        return [device.name for device in fleet.devices]

    def _is_as_read(self) -> bool:
        source = self._fleet.source
        if source is None:
            return True
        try:
            return source.path.read_bytes() == source.text.encode()
        except OSError:
            return False

    def _signature(self) -> tuple[int, ...]:
        """Return the signature of the file, which changes when the file is written. Empty without a file."""
        if self._fleet.source is None:
            return ()
        try:
            found = os.stat(self._fleet.source.path)
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns


def _tables(fleet: FleetConfig) -> dict[str, object]:
    """Return the tables of a fleet file that do not change during a run."""
    return {"[build]": fleet.build, "[measure]": fleet.measure}
