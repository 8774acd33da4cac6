"""The turns of one run on the devices that the runs of its cluster share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator

from actors.clients.device import turn_of
from actors.turns.arbiter import turn_arbiter
from actors.turns.client import TurnClient
from actors.turns.device_turn import DeviceTurn
from fleet_tune.base.config.fleet_file import DeviceConfig, RecordedConnection, TrackerConnection
from policies.runs.cluster.turns import RunShare

_NATIVE = "native"  # each device has the target of its own processor
_HOLD_SECS = 3.0  # of a wait for a device, until people are told of it


class RunTurns:
    """Requests devices on behalf of ``run``."""

    def __init__(self, run: RunShare) -> None:
        self._run = run

    def requester(self, device: DeviceConfig, number: int, node_id: str) -> TurnClient | None:
        """Return the client that requests a device; None for a device whose answers come from a dataset. ``number``:
        number of the device among the fleet's devices with the same address. ``node_id``: id of the node that drives
        it."""
        if isinstance(device.connection, RecordedConnection):
            return None
        name = _cluster_name(device, number, node_id)
        return TurnClient(turn_arbiter, self._run, name, pool_of(device, name))

    @contextlib.contextmanager
    def holding(
        self,
        devices: Iterable[tuple[DeviceConfig, int, str]],
        report_wait: Callable[[str], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Hold these devices for this run alone. Each is given as for :meth:`requester`. This thread waits for each
        device, until ``is_over``. ``report_wait``: is called with a text about a wait that takes long, and with an
        empty text once the wait is over."""
        # All runs have the same order, so that no two runs wait for each other's devices.
        ordered = sorted(devices, key=lambda each: _cluster_name(*each))
        with contextlib.ExitStack() as stack:
            for device, number, node_id in ordered:
                requester = self.requester(device, number, node_id)
                if requester is not None:
                    turn = DeviceTurn(requester, disconnect=lambda: None)
                    stack.callback(turn.close)
                    while not is_over() and (title := turn.wait(_HOLD_SECS)):
                        report_wait(f"device {device.name}: {turn_of(title)}")
                    if not is_over():
                        stack.enter_context(turn.used())
            report_wait("")
            yield


def _cluster_name(device: DeviceConfig, number: int, node_id: str) -> str:
    """The name of a device for all runs of the cluster."""
    # Hosts may have different networks: an address that is dialled from a host belongs to that host.
    seen_from = f"{node_id} " if device.is_dialled_at_home or device.via is not None else ""
    # A tracker hands out any of the devices of a key.
    which = f" #{number}" if isinstance(device.connection, TrackerConnection) and not device.shares_host else ""
    return f"{seen_from}{device.connect}{which}"


def pool_of(device: DeviceConfig, name: str) -> str:
    """Return the pool of a device. Runs get fair shares of the devices of a pool. The devices of one class are a pool,
    as far as the fleet file names the class. A native target does not name a class: such a device is its own pool, by
    its ``name`` in the cluster or by the address of its tracker, and goes from run to run."""
    if device.device_class is not None:
        return device.device_class
    if device.target != _NATIVE:
        return device.target if isinstance(device.target, str) else json.dumps(device.target, sort_keys=True)
    return device.connect if isinstance(device.connection, TrackerConnection) else name
