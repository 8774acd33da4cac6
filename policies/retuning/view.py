"""Queries on the state of the service, by the rules of its file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.retuning.allowance import WINDOW_SECS
from policies.retuning.rules import Rules
from policies.retuning.state import Deployment, DeviceAnswer, ServiceState

OVERHEAD_SECS = 300.0
"""Seconds that a run is assumed to take beside its tuning before a run was seen: import, description, compiling,
comparing."""
ASK_SECS = 60.0
"""Seconds that asking a device is assumed to take before a device was asked."""
_MOST_ASKING = 0.25
"""Largest part of a day's share that asking all devices once is assumed to need."""


class ServiceView:
    """The state of the service as its rules see it."""

    def __init__(self, rules: Rules, state: ServiceState) -> None:
        self.rules = rules
        self.state = state
        self.subjects = {subject.name: subject for subject in rules.subjects}
        state.devices = [each for each in state.devices if each.name in rules.devices]

    def active(self) -> list[Deployment]:
        """The deployments of the networks and classes that the file asks for now."""
        found = []
        for each in self.state.deployments:
            subject = self.subjects.get(each.network)
            if subject is not None and (subject.classes is None or each.device_class in subject.classes):
                found.append(each)
        return found

    def deployment(self, network: str, device_class: str) -> Deployment | None:
        """The deployment of a network on a class; None if there is none."""
        keys = ((each, (each.network, each.device_class)) for each in self.state.deployments)
        return next((each for each, key in keys if key == (network, device_class)), None)

    def online(self, device_class: str) -> list[DeviceAnswer]:
        """The devices of a class that answered when they were asked last."""
        return [each for each in self.state.devices if each.device_class == device_class and not each.problem]

    @property
    def ask_secs(self) -> float:
        """Estimated seconds to ask one device. The estimate is limited so that all devices can be asked within the
        share; so an estimate that is too long gets corrected."""
        secs = ASK_SECS if self.state.ask_secs is None else self.state.ask_secs
        return min(secs, _MOST_ASKING * self.rules.share * WINDOW_SECS / len(self.rules.devices))

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of these devices that answered when they were asked last, by class."""
        counts: dict[str, int] = {}
        for device in self.state.devices:
            if device.name in names and not device.problem:
                counts[device.device_class] = counts.get(device.device_class, 0) + 1
        return counts

    @property
    def ask_every_secs(self) -> float:
        """Seconds between two rounds of asking all devices: ``devices_every_secs``, or longer if asking would otherwise
        take more than half of the share. Without this limit, asking slow devices could take all of it."""
        return max(self.rules.devices_every_secs, 2 * self.ask_secs * len(self.rules.devices) / self.rules.share)

    def reserve_secs(self, device_class: str) -> float:
        """Device seconds of a day that are left for asking the devices of a class."""
        asks = math.ceil(WINDOW_SECS / self.ask_every_secs) + 1
        return asks * self.ask_secs * len(self.rules.devices) * len(self.online(device_class))

    def overhead_secs(self, each: Deployment) -> float:
        """Return the seconds that a run takes beside its tuning."""
        return OVERHEAD_SECS if each.overhead_secs is None else each.overhead_secs
