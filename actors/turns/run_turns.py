"""The turns of one run on the devices that the runs of its cluster share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator

from actors.clients.device import turn_of
from actors.turns.client import TurnClient
from actors.turns.device_turn import DeviceTurn
from actors.turns.keeper import turn_keeper
from fleet_tune.base.config.fleet_file import DeviceConfig, RecordedConnection, TrackerConnection
from policies.runs.cluster.turns import RunShare

_NATIVE = "native"  # each device has the target of its own processor
_HOLD_SECS = 3.0  # until it is told that a device is waited for


class RunTurns:
    """``party``: the run."""

    def __init__(self, party: RunShare) -> None:
        self._party = party

    def asker(self, device: DeviceConfig, number: int, node_id: str) -> TurnClient | None:
        """Asks for this run's turn on the device, the ``number``-th of the fleet's with its address, which is driven
        from this node; None for one that a dataset answers for."""
        if isinstance(device.connection, RecordedConnection):
            return None
        place = self._place(device, number, node_id)
        return TurnClient(turn_keeper, self._party, place, pool_of(device, place))

    @contextlib.contextmanager
    def holding(
        self,
        devices: Iterable[tuple[DeviceConfig, int, str]],
        tell: Callable[[str], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """The turns on these devices, each with its number and its node, for oneself; each is waited for in this
        thread, until ``is_over``. ``tell``: is told what is waited for where that takes long, and nothing once it is
        over."""
        # In one order for all runs: of two that need the same devices, none has what the other waits for.
        ordered = sorted(devices, key=lambda each: self._place(*each))
        with contextlib.ExitStack() as stack:
            for device, number, node_id in ordered:
                asker = self.asker(device, number, node_id)
                if asker is not None:
                    turn = DeviceTurn(asker, leave=lambda: None)
                    stack.callback(turn.close)
                    while not is_over() and (title := turn.wait(_HOLD_SECS)):
                        tell(f"device {device.name}: {turn_of(title)}")
                    if not is_over():
                        stack.enter_context(turn.used())
            tell("")
            yield

    def _place(self, device: DeviceConfig, number: int, node_id: str) -> str:
        """What the device is called by every run of the cluster."""
        # Of another host, whose networks may be others.
        seen_from = f"{node_id} " if device.is_dialled_at_home or device.via is not None else ""
        # A tracker's devices are any of those of their key.
        which = f" #{number}" if isinstance(device.connection, TrackerConnection) and not device.shares_host else ""
        return f"{seen_from}{device.connect}{which}"


def pool_of(device: DeviceConfig, place: str) -> str:
    """The devices among which shares are fair by number: those of one class, as far as the fleet file says it, which a
    native target does not. What may be of any kind is a pool of its own, by its ``place``, and goes from run to run."""
    if device.device_class is not None:
        return device.device_class
    if device.target != _NATIVE:
        return device.target if isinstance(device.target, str) else json.dumps(device.target, sort_keys=True)
    return device.connect if isinstance(device.connection, TrackerConnection) else place
