"""The states of a run's devices: what happens to them goes through the state machine, and every change is kept."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from fleet_tune.device_state import LEASE_KINDS, Admin, Connectivity, DeviceEvent, DeviceState, Health
from fleet_tune.errors import FleetOrdersError
from fleet_tune.records.orders import FleetOrders, Order
from policies.measuring import health

_LOG = logging.getLogger(__name__)
_POLL_SECS = 1.0
_CALM = ("unknown", "good")
Keep = Callable[[Sequence[DeviceEvent]], Awaitable[None]]


class FleetHealth:
    """States by device id. ``device_classes``: the class of each device. ``keep``: makes events durable. ``orders``:
    what people want of the devices, None for a fleet without a file. ``clock``: unix seconds.

    :meth:`happened` changes a state at once and returns; :meth:`write` makes the changes durable in their order, and
    :meth:`obey` looks for orders: two loops that the scheduler runs beside its stages.
    """

    def __init__(
        self,
        device_classes: Mapping[str, str],
        run_id: str,
        keep: Keep,
        orders: FleetOrders | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run_id = run_id
        self._classes = device_classes
        self._states = dict.fromkeys(device_classes, DeviceState())
        self._keep = keep
        self._orders = orders
        self._clock = clock
        self._cursor = 0
        self._unwritten: deque[DeviceEvent] = deque()
        self._writing: deque[DeviceEvent] = deque()
        self._wake = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self.changes = 0

    def __getitem__(self, device_id: str) -> DeviceState:
        return self._states[device_id]

    @property
    def words(self) -> dict[str, str]:
        """Each device's state in one word."""
        return {name: state.word for name, state in self._states.items()}

    def restore(self, kept: Mapping[str, DeviceState]) -> None:
        """Begin with what earlier runs on the same store kept, and with the orders that hold."""
        orders = {} if self._orders is None else self._orders.latest()
        self._cursor = max((order.seq for order in orders.values()), default=0)
        for name in self._states:
            admin = orders[name].admin if name in orders else Admin.ACTIVE
            self._states[name] = health.restored(kept.get(name, DeviceState()), admin)
            if admin is not Admin.ACTIVE:
                self._note(name, "ordered", f"{orders[name].admin}{_of(orders[name].reason)}")

    def happened(self, device_id: str, event: health.Event) -> DeviceState:
        """The device's state after ``event``. Raises :class:`policies.measuring.health.NotAllowedError`."""
        before = self._states[device_id]
        change = health.step(before, event, self._clock())
        self._states[device_id] = change.state
        if change.kept:
            # The end of a lease is also the end of a draining: that one is of interest.
            drained = isinstance(event, health.Released) and change.state.admin is not before.admin
            self._note(device_id, "drained" if drained else _kind(event), change.reason)
            if change.state.word != before.word:
                level = logging.INFO if change.state.word in _CALM else logging.WARNING
                _LOG.log(level, "device %s is %s: %s", device_id, change.state.word, change.reason)
        return change.state

    def quarantine_is_over(self, device_id: str) -> bool:
        return self._clock() >= self._states[device_id].until_unix_secs

    def usable(self, device_class: str) -> list[str]:
        """The devices of a class that work or could: online, good and active."""
        return [
            name
            for name, state in self._states.items()
            if self._classes[name] == device_class
            and (state.connectivity, state.health, state.admin) == (Connectivity.ONLINE, Health.GOOD, Admin.ACTIVE)
        ]

    def hopeless(self, device_class: str) -> str:
        """Why no device of the class will work without somebody's help, in words; empty while one may."""
        states = {name: state for name, state in self._states.items() if self._classes[name] == device_class}
        if any(health.may_return(state) for state in states.values()):
            return ""
        return ", ".join(f"{name} is {state.word}" for name, state in states.items())

    async def write(self) -> None:
        """Make changes durable as they come. Ends with the error of a store that cannot."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write_all()

    async def flush(self) -> None:
        """Until every change so far is durable."""
        await self._write_all()
        await self._written.wait()

    async def obey(self, notify: Callable[[], Awaitable[None]]) -> None:
        """Look for orders every second and follow them; ``notify`` wakes whoever waits for a device."""
        complained = False
        while self._orders is not None:
            await asyncio.sleep(_POLL_SECS)
            try:
                orders: list[Order] = await asyncio.to_thread(self._orders.since, self._cursor)
            except FleetOrdersError as error:
                if not complained:
                    _LOG.warning("%s", error)
                complained = True
                continue
            for order in orders:
                self._cursor = order.seq
                if order.device_id in self._states:
                    self.happened(order.device_id, health.Ordered(order.admin, order.reason))
            if orders:
                await notify()

    def _note(self, device_id: str, kind: str, reason: str) -> None:
        state = self._states[device_id]
        self._unwritten.append(DeviceEvent(device_id, self.run_id, kind, reason, state, self._clock()))
        self.changes += kind not in LEASE_KINDS
        self._written.clear()
        self._wake.set()

    async def _write_all(self) -> None:
        while self._unwritten and not self._writing:
            self._writing, self._unwritten = self._unwritten, deque()
            try:
                await self._keep(tuple(self._writing))
            finally:
                self._writing = deque()
        if not self._unwritten and not self._writing:
            self._written.set()


def _kind(event: health.Event) -> str:
    """``probe_passed`` for ``ProbePassed``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


def _of(reason: str) -> str:
    return f" ({reason})" if reason else ""
