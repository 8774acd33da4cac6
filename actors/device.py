"""The device actor: owns one device, measures artifacts on it and makes the records durable."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, fetch
from actors.recorder import make_record
from devices.artifact import Artifact, MeasureRequest
from devices.child import without_torch
from devices.device import Device
from devices.evaluator import load_decide
from devices.quiet import QuietWindow
from devices.replay import ReplayDevice
from devices.server import DeviceServer
from fleet_tune.config import DeviceConfig, FleetConfig, LocalConnection, ReplayConnection, RpcConnection
from fleet_tune.dataset import load
from fleet_tune.domain import Fingerprint, Measurement, Outcome, Record, StopRule
from fleet_tune.errors import DatasetError, DeviceUnreachableError, FleetFileError, UserError

_APPEND_DEADLINE_SECS = 30.0
_FETCH_DEADLINE_SECS = 30.0
STOP_DECISION = "policies.stopping:decide"


class DeviceActor:
    """One device, which ``open_device`` connects to (see :func:`opened_device`).

    A device that shares its host with builders (``quiet_window``) is measured in quiet windows, a batch in each.
    """

    def __init__(
        self,
        device_id: str,
        open_device: Callable[[], contextlib.AbstractContextManager[Device]],
        run_id: str,
        quiet_window: str | None,
    ) -> None:
        self._device_id = device_id
        self._open_device = open_device
        self._run_id = run_id
        self._window = QuietWindow(Path(quiet_window), WINDOW_WAIT_SECS) if quiet_window else None
        self._opened = contextlib.ExitStack()
        self._connected: Device | None = None
        self._best_secs: dict[str, float] = {}

    @property
    def _device(self) -> Device:
        """Opened when first asked for, so that what is wrong with it is the answer of a call, not a dead actor."""
        if self._connected is None:
            without_torch()  # this process needs TVM alone, which otherwise loads torch too
            self._connected = self._opened.enter_context(self._open_device())
        return self._connected

    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises :class:`DeviceUnreachableError`."""
        with self._quiet():
            return self._device.fingerprint()

    def measure(
        self,
        artifacts: Sequence[Any],
        references: Mapping[str, tuple[list[Any], float]],
        rule: StopRule,
        recorder: Any,
    ) -> list[tuple[str, Outcome]]:
        """Measure a batch in one quiet window and store the records; returns (candidate id, outcome) of each.

        ``artifacts``: object references. ``references``: for each task of the batch the object reference of its
        unscheduled program (in a list, so that it is fetched only where it is lacking: a restarted actor lacks all)
        and its incumbent's cost. A lost device gives DEVICE_LOST, which is not stored: the scheduler decides whether
        the candidate is tried again.
        """
        for task_id, ([reference], best_secs) in references.items():
            if task_id not in self._best_secs:
                self._device.add_reference(fetch(reference, _FETCH_DEADLINE_SECS, "fetch a reference"))
            self._best_secs[task_id] = min(best_secs, self._best_secs.get(task_id, best_secs))
        fetched: list[Artifact] = [fetch(one, _FETCH_DEADLINE_SECS, "fetch an artifact") for one in artifacts]
        records: list[Record] = []
        outcomes: list[tuple[str, Outcome]] = []
        with self._quiet():
            for artifact in fetched:
                assert artifact.candidate is not None
                measurement = self._measure(artifact, rule)
                outcomes.append((artifact.candidate.id, measurement.outcome))
                if measurement.outcome is not Outcome.DEVICE_LOST:
                    records.append(
                        make_record(artifact.candidate, artifact.trace, measurement, self._run_id, self._device_id)
                    )
        if records:
            fetch(recorder.append.remote(records), _APPEND_DEADLINE_SECS, "store records")
        return outcomes

    def _measure(self, artifact: Artifact, rule: StopRule) -> Measurement:
        incumbent_secs = self._best_secs[artifact.task_id]
        try:
            measured = self._device.measure(MeasureRequest(artifact, incumbent_secs, rule))
        except DeviceUnreachableError as error:
            return Measurement(Outcome.DEVICE_LOST, detail=str(error))
        if measured.verified and measured.cost_secs < incumbent_secs:
            self._best_secs[artifact.task_id] = measured.cost_secs
        return dataclasses.replace(measured, build_secs=artifact.build_secs)

    def close(self) -> None:
        self._opened.close()

    def _quiet(self) -> contextlib.AbstractContextManager[Any]:
        return self._window.quiet() if self._window else contextlib.nullcontext()


@contextlib.contextmanager
def told_with_its_place(fleet: FleetConfig, name: str) -> Iterator[None]:
    """What is wrong with a device becomes a :class:`FleetFileError` that names the device and its line."""
    try:
        yield
    except FleetFileError:
        raise
    except UserError as error:
        place = fleet.where(name, "connect" if isinstance(error, DatasetError) else "target")
        raise FleetFileError(f"{place}: device {name!r}: {error.problem}", error.next_step) from error
    except (DeviceUnreachableError, ActorTimeoutError, ActorLostError) as error:
        place = fleet.where(name, "connect")
        raise FleetFileError(
            f"{place}: device {name!r} does not answer: {error}",
            "start 'fleet-tune device serve' on it and check the address",
        ) from error


@contextlib.contextmanager
def opened_device(config: DeviceConfig) -> Iterator[Device]:
    """The device of ``config``: a local one behind a server of its own, the one at its address, or a dataset.

    Raises :class:`fleet_tune.errors.UserError` for a target that nobody knows, a dataset that cannot be read, or a
    tracker (not supported yet).
    """
    connection = config.connection
    if isinstance(connection, ReplayConnection):
        yield ReplayDevice(load(connection.path), config.device_class, load_decide(STOP_DECISION))
        return
    # Here, and not at the top: the driver names this function before it has loaded TVM.
    from devices.rpc_device import RpcDevice

    with contextlib.ExitStack() as stack:
        if isinstance(connection, LocalConnection):
            server = stack.enter_context(DeviceServer(threads=config.threads, decide=STOP_DECISION))
            host, port = server.host, server.port
        elif isinstance(connection, RpcConnection):
            host, port = connection.host, connection.port
        else:
            raise FleetFileError(
                f"device {config.name!r} is reached through a tracker, which this version cannot do yet",
                "start 'fleet-tune device serve' on it and give connect = \"host:port\"",
            )
        yield stack.enter_context(contextlib.closing(RpcDevice(config, host, port, decide=STOP_DECISION)))
