"""Who comes while a run goes on: devices that did not answer when it began, or that the fleet file names only since.

The driver waits for each of them, beside the run. One of a class for which the run tunes is used at once. Of a class
that is new, the first one is an arrival: whoever prepares the network for it says with :meth:`DeviceAdmission.admit` or
:meth:`DeviceAdmission.refuse` what becomes of it and of all others of its class.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping

from actors.clients.calls import told
from actors.clients.device import DeviceClient
from actors.clients.handles import ActorHandles
from actors.scheduling.supervisor import SchedulerSupervisor
from fleet_tune.base.domain import DeviceClass, Fingerprint
from fleet_tune.base.errors import FleetTuneError, UserError
from policies.runs.events import ClassAwaited, DeviceAnswered

_LOG = logging.getLogger(__name__)


class DeviceAdmission:
    """Admits devices to a run that goes on.

    Args:
        scheduling: is told of each device and class that is admitted.
        targets: the target of each class for which the run tunes, by the class' name.
        handles: the registry into which each device is entered that a scheduler uses.
        classes: the class of each device of the run that has answered, by the device's name.
        told: notices that people were given when the run began.
    """

    classes: dict[str, str]
    """The class of each device that has answered and has not left, by the device's name."""

    def __init__(
        self,
        scheduling: SchedulerSupervisor,
        targets: Mapping[str, str],
        handles: ActorHandles,
        classes: Mapping[str, str],
        told: Collection[str] = (),
    ) -> None:
        self.classes = dict(classes)
        self._scheduling = scheduling
        self._targets = dict(targets)
        self._handles = handles
        self._told = told
        self._expected: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, dict[str, tuple[DeviceClient, str]]] = {}  # by class: devices, with their targets
        self._refused: dict[str, str] = {}  # classes that cannot be tuned, and why
        self._arrivals: asyncio.Queue[tuple[str, Fingerprint]] = asyncio.Queue()

    def expect(self, device_id: str, device: DeviceClient) -> None:
        """Wait for a device."""
        self._expected[device_id] = asyncio.ensure_future(self._expect(device_id, device))

    async def forget(self, device_id: str) -> None:
        """A device is waited for no more, and belongs to nothing."""
        expected = self._expected.pop(device_id, None)
        if expected is not None:
            expected.cancel()
            await asyncio.wait([expected])
        for devices in self._waiting.values():
            devices.pop(device_id, None)

    def remove(self, device_id: str) -> None:
        """Forget a device that has left the run."""
        self.classes.pop(device_id, None)
        self._handles.devices.pop(device_id, None)

    async def arrival(self) -> tuple[str, Fingerprint]:
        """The next device of a class that is new, and what it says of itself."""
        return await self._arrivals.get()

    async def admit(self, device_class: DeviceClass) -> None:
        """The run tunes for a class that arrived: its devices are used."""
        self._targets[device_class.name] = device_class.target
        for device_id, (device, target) in self._waiting.pop(device_class.name, {}).items():
            with self._telling(device_id):
                await self._use(device_id, device_class.name, target, device)

    async def refuse(self, device_class: str, reason: str) -> None:
        """The run does not tune for a class that arrived: its devices are left alone."""
        self._refused[device_class] = reason
        for device_id in self._waiting.pop(device_class, {}):
            self._left_alone(device_id, device_class)

    def close(self) -> None:
        """Nobody is waited for any more."""
        for expected in self._expected.values():
            expected.cancel()

    async def _expect(self, device_id: str, device: DeviceClient) -> None:
        def tell(reason: str) -> None:
            if not any(reason in text for text in self._told):  # it was told when the run began
                self._scheduling.notice(f"device {device_id} is still not there: {reason}", False)

        with self._telling(device_id):
            fingerprint = await device.joined(tell)
            await self._answered(device_id, device, fingerprint)

    @contextlib.contextmanager
    def _telling(self, device_id: str) -> Iterator[None]:
        """Whatever is wrong with a device is told, and takes nothing from the others."""
        try:
            yield
        except UserError as error:
            self._scheduling.notice(f"device {device_id} cannot be used: {error}", False)
        except Exception as error:  # a run that is over, or that a recorder ends, needs nobody
            if not isinstance(error, FleetTuneError):
                _LOG.exception("device %s is not taken", device_id)
            self._scheduling.notice(f"device {device_id} is not taken: {told(error)}", False)

    async def _answered(self, device_id: str, device: DeviceClient, fingerprint: Fingerprint) -> None:
        name, target = fingerprint.device_class.name, fingerprint.device_class.target
        if name in self._targets:
            await self._use(device_id, name, target, device)
        elif name in self._refused:
            self._left_alone(device_id, name)
        elif name in self._waiting:
            self._waiting[name][device_id] = (device, target)
        else:
            self._waiting[name] = {device_id: (device, target)}
            text = f"device {device_id} answers: it is of class {name}, for which the network is prepared now"
            self._scheduling.notice(text, True)
            await self._scheduling.tell(ClassAwaited(name))
            self._arrivals.put_nowait((device_id, fingerprint))

    async def _use(self, device_id: str, device_class: str, target: str, device: DeviceClient) -> None:
        if target != self._targets[device_class]:
            text = (
                f"it has another target than the others of its class {device_class}: give it a device_class of its own"
            )
            self._scheduling.notice(f"device {device_id} cannot be used: {text}", False)
            return
        used = device.of_class(target)
        self.classes[device_id], self._handles.devices[device_id] = device_class, used
        await self._scheduling.tell(DeviceAnswered(device_id, device_class))

    def _left_alone(self, device_id: str, device_class: str) -> None:
        why = f"class {device_class} does not join this run: {self._refused[device_class]}"
        self._scheduling.notice(f"device {device_id} is not used: {why}", False)
