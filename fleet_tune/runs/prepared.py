"""The first value of a run: its network, lowered for device classes, and what is known of its tasks before a trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.device_state import Admin, DeviceState, Health
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.results import OutputErrors, SkippedPart, Transferred
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import MOST_IMPORTED
from fleet_tune.runs.origins import origin_of
from fleet_tune.runs.shared_store.lookup import StoreLookup
from fleet_tune.runs.transfer.transfer_prior import TransferPrior

if TYPE_CHECKING:  # these modules load TVM
    from devices.networks.dynamic.other_extents import OtherExtents
    from devices.networks.frontend import Network
    from devices.networks.network import Array
    from devices.networks.tasks.lowering import LoweredNetwork


@dataclass(frozen=True)
class Prepared:
    """A network that is lowered for one or more device classes. Its tasks have no sketches yet."""

    network: Network
    fingerprints: Mapping[str, Fingerprint]
    """The fingerprint of each device class, by the name of the class."""
    lowered: Mapping[str, LoweredNetwork]
    """The lowered network of each device class, with its tasks."""
    here: frozenset[str]
    """Names of the device classes that this machine belongs to."""
    devices: Mapping[str, tuple[DeviceConfig, ...]]
    """The devices of each class that have answered and have not left."""
    left_out: tuple[SkippedPart, ...] = ()
    """Parts of the network that the run does without."""
    expected: tuple[Array, ...] | None = None
    """Outputs of the network's framework on the example inputs. None before they are known."""
    other_extents: OtherExtents | None = None
    """Inputs and framework outputs at other extents of the dynamic dimensions. None before they are known."""
    errors: Mapping[str, OutputErrors] = field(default_factory=dict)
    """Errors of the untuned network of each device class for which it was compared with the framework."""
    untuned_secs: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a run of the untuned network on one core of this machine, by class. Missing for classes whose untuned
    network was not compared here or would be published in another form."""
    found: StoreLookup | None = None
    """Records of the tasks in the shared store. None in a run without a shared store."""
    priors: Mapping[str, TransferPrior] = field(default_factory=dict)
    """The source of the cost models from which the searches of a device class start, by class."""

    @property
    def origins(self) -> dict[str, Origin]:
        """The origin of the records of each device class."""
        return {name: origin_of(fingerprint) for name, fingerprint in self.fingerprints.items()}

    @property
    def undescribed(self) -> tuple[SearchTask, ...]:
        """Every task of the network, without its sketches."""
        return tuple(
            SearchTask(task, (), self.fingerprints[name].abstraction)
            for name, of_class in self.lowered.items()
            for task in of_class.tasks
        )

    @property
    def device_ids(self) -> dict[str, list[str]]:
        """The ids of the devices of each class."""
        return {name: [config.name for config in configs] for name, configs in self.devices.items()}

    @property
    def settled(self) -> dict[str, str]:
        """The ids of the tasks that get no trial, each with the reason."""
        return {} if self.found is None else self.found.reasons

    def with_classes(self, other: Prepared) -> Prepared:
        """Add the device classes of ``other``, a preparation of the same network."""
        found = self.found
        if other.found is not None:
            found = other.found if found is None else found.with_class(other.found)
        return dataclasses.replace(
            self,
            fingerprints={**self.fingerprints, **other.fingerprints},
            lowered={**self.lowered, **other.lowered},
            here=self.here | other.here,
            devices={**self.devices, **other.devices},
            left_out=(*self.left_out, *other.left_out),
            errors={**self.errors, **other.errors},
            untuned_secs={**self.untuned_secs, **other.untuned_secs},
            found=found,
            priors={**self.priors, **other.priors},
        )

    def with_found(self, found: StoreLookup) -> Prepared:
        """Add the result of the look-up in the shared store. Each task also gets the sketches of the store that no rule
        makes, at most ``MOST_IMPORTED``."""
        lowered = {
            name: dataclasses.replace(
                of_class,
                tasks=tuple(
                    dataclasses.replace(task, imported=found.imported.get(task.id, ())[:MOST_IMPORTED])
                    for task in of_class.tasks
                ),
            )
            for name, of_class in self.lowered.items()
        }
        return dataclasses.replace(self, lowered=lowered, found=found)

    def with_prior(self, prior: TransferPrior | None) -> Prepared:
        """Use this prior for the searches of all classes. None changes nothing."""
        return self if prior is None else dataclasses.replace(self, priors=dict.fromkeys(self.fingerprints, prior))

    def with_left_out(self, *parts: SkippedPart) -> Prepared:
        """Add parts that the run does without, before the parts that are known already."""
        return dataclasses.replace(self, left_out=(*parts, *self.left_out))

    @property
    def first_prior(self) -> TransferPrior | None:
        """The prior of the class that was there first. None if there is none."""
        return next(iter(self.priors.values()), None)

    def transferred(self, tasks: Sequence[SearchTask]) -> Transferred | None:
        """Summarize what ``tasks`` have learned from the first prior. None if they have learned nothing."""
        prior = self.first_prior
        others = tasks if self.found is None else self.found.without_prior(tasks)
        learning = [entry for entry in others if self.priors.get(entry.task.device_class.name) is prior]
        return None if prior is None or not learning else prior.summary(learning)

    def device_of(self, device_class: str, states: Mapping[str, DeviceState]) -> DeviceConfig | None:
        """Return the first device of a class that is in use and not quarantined, by its last known state. A device that
        was lost is returned only if there is no other. None if there is no such device."""

        def state(config: DeviceConfig) -> DeviceState:
            return states.get(config.name, DeviceState())

        usable = [
            config
            for config in self.devices.get(device_class, ())
            if state(config).admin is Admin.ACTIVE and state(config).health is not Health.QUARANTINED
        ]
        return min(usable, key=lambda config: state(config).is_lost, default=None)
