"""The admission of devices to a run under way: devices that did not answer when it began, and devices that were added
to the fleet file later.

The driver waits for each of them in the background. A device of a class for which the run tunes is used at once. The
first device of another class makes the driver prepare the network for that class; :meth:`DeviceAdmission.admit_class`
or :meth:`DeviceAdmission.refuse_class` then decides about all devices of the class.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping

from actors.clients.calls import error_line
from actors.clients.device import DeviceClient
from actors.clients.handles import ActorHandles
from actors.scheduling.supervisor import SchedulerSupervisor
from fleet_tune.base.domain import DeviceClass, Fingerprint
from fleet_tune.base.errors import FleetTuneError, UserError
from policies.runs.events import ClassAwaited, DeviceAnswered

_LOG = logging.getLogger(__name__)


class DeviceAdmission:
    """Admits devices to a run under way.

    Args:
        supervisor: is told of each device and class that is admitted.
        targets: the target of each class for which the run tunes, by the class' name.
        handles: the registry of actors, which gets each device that a scheduler may use.
        classes: the class of each device of the run that has answered, by the device's name.
        first_notices: the notices of the run's start. A reason in them is not reported again.
        fingerprints: the fingerprint of each device of the run that has answered, by the device's name.
    """

    classes: dict[str, str]
    """The class of each device that has answered and has not left, by the device's name."""

    def __init__(
        self,
        supervisor: SchedulerSupervisor,
        targets: Mapping[str, str],
        handles: ActorHandles,
        classes: Mapping[str, str],
        first_notices: Collection[str] = (),
        fingerprints: Mapping[str, Fingerprint] | None = None,
    ) -> None:
        self.classes = dict(classes)
        self._supervisor = supervisor
        self._targets = dict(targets)
        self._handles = handles
        self._first_notices = first_notices
        self._fingerprints: dict[str, list[Fingerprint]] = {}
        """The fingerprints of the devices of each class, by the class' name."""
        for each in (fingerprints or {}).values():
            self._fingerprints_of(each).append(each)
        self._waits: dict[str, asyncio.Task[None]] = {}
        """The waits for an answer, by the device's id."""
        self._unprepared: dict[str, dict[str, tuple[DeviceClient, str]]] = {}
        """Devices of each class for which the network is being prepared, with their targets."""
        self._refused: dict[str, str] = {}
        """Why the run does not tune for a class, by the class' name."""
        self._new_classes: asyncio.Queue[tuple[str, Fingerprint]] = asyncio.Queue()

    def wait_for(self, device_id: str, device: DeviceClient) -> None:
        """Admit a device when it answers."""
        self._waits[device_id] = asyncio.ensure_future(self._admit(device_id, device))

    async def stop_waiting(self, device_id: str) -> None:
        """Do not wait for a device any more."""
        wait = self._waits.pop(device_id, None)
        if wait is not None:
            wait.cancel()
            await asyncio.wait([wait])
        for devices in self._unprepared.values():
            devices.pop(device_id, None)

    def remove(self, device_id: str) -> None:
        """Forget a device that has left the run."""
        self.classes.pop(device_id, None)
        self._handles.devices.pop(device_id, None)

    async def next_class(self) -> tuple[str, Fingerprint]:
        """Wait for the next device of a class for which nothing is tuned. Return its id and its fingerprint."""
        return await self._new_classes.get()

    async def admit_class(self, device_class: DeviceClass) -> None:
        """Use the devices of a class that :meth:`next_class` has returned: the run tunes for it now."""
        self._targets[device_class.name] = device_class.target
        for device_id, (device, target) in self._unprepared.pop(device_class.name, {}).items():
            with self._reporting(device_id):
                await self._use(device_id, device_class.name, target, device)

    async def refuse_class(self, device_class: str, reason: str) -> None:
        """Do not use the devices of a class that :meth:`next_class` has returned: the run does not tune for it."""
        self._refused[device_class] = reason
        for device_id in self._unprepared.pop(device_class, {}):
            self._leave_alone(device_id, device_class)

    def close(self) -> None:
        """Stop waiting for all devices."""
        for wait in self._waits.values():
            wait.cancel()

    def _fingerprints_of(self, fingerprint: Fingerprint) -> list[Fingerprint]:
        """Return the fingerprints of the devices of the same class so far."""
        return self._fingerprints.setdefault(fingerprint.device_class.name, [])

    async def _admit(self, device_id: str, device: DeviceClient) -> None:
        """Wait for a device's answer, then use the device, keep it for a class that is being prepared, or refuse it."""

        def report(reason: str) -> None:
            if not any(reason in text for text in self._first_notices):
                self._supervisor.notice(f"device {device_id} is still not there: {reason}", False)

        with self._reporting(device_id):
            fingerprint = await device.first_answer(report)
            name, target = fingerprint.device_class.name, fingerprint.device_class.target
            fingerprints = self._fingerprints_of(fingerprint)
            other = next((each for each in fingerprints if each.differs_in_power(fingerprint)), None)
            if other is not None:
                text = f"it is in power mode {fingerprint.power}, others of its class {name} in {other.power}"
                self._supervisor.notice(
                    f"device {device_id} cannot be used: {text}: set it alike, and begin the run again", False
                )
                return
            fingerprints.append(fingerprint)
            device = device.of_class(target, fingerprint.power)
            if name in self._targets:
                await self._use(device_id, name, target, device)
            elif name in self._refused:
                self._leave_alone(device_id, name)
            elif name in self._unprepared:
                self._unprepared[name][device_id] = (device, target)
            else:
                self._unprepared[name] = {device_id: (device, target)}
                text = f"device {device_id} answers: it is of class {name}, for which the network is prepared now"
                self._supervisor.notice(text, True)
                await self._supervisor.tell(ClassAwaited(name))
                self._new_classes.put_nowait((device_id, fingerprint))

    @contextlib.contextmanager
    def _reporting(self, device_id: str) -> Iterator[None]:
        """Report an error of one device as a notice, so that it does not affect the others."""
        try:
            yield
        except UserError as error:
            self._supervisor.notice(f"device {device_id} cannot be used: {error}", False)
        except Exception as error:  # if the run is over or its recorder is lost, it needs no more devices
            if not isinstance(error, FleetTuneError):
                _LOG.exception("device %s is not taken", device_id)
            self._supervisor.notice(f"device {device_id} is not taken: {error_line(error)}", False)

    async def _use(self, device_id: str, device_class: str, target: str, device: DeviceClient) -> None:
        if target != self._targets[device_class]:
            text = (
                f"it has another target than the others of its class {device_class}: give it a device_class of its own"
            )
            self._supervisor.notice(f"device {device_id} cannot be used: {text}", False)
            return
        self.classes[device_id], self._handles.devices[device_id] = device_class, device
        await self._supervisor.tell(DeviceAnswered(device_id, device_class))

    def _leave_alone(self, device_id: str, device_class: str) -> None:
        why = f"class {device_class} does not join this run: {self._refused[device_class]}"
        self._supervisor.notice(f"device {device_id} is not used: {why}", False)
