"""The started builders and devices of a run. They start before it is known whether anything is tuned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from actors.clients.builder import BuilderMachineClient
from actors.clients.calls import LOST, WINDOW_WAIT_SECS, first_line
from actors.clients.device import fingerprints, fingerprints_in_turn
from actors.clusters.cluster import Cluster
from actors.device_orders import out_of_use
from actors.host_actors import HostActors, OpenDevice
from actors.processes.builder import Worker
from actors.turns.run_turns import RunTurns
from devices.device_factory import fleet_file_errors, open_device
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import DeviceUnreachableError, FleetFileError
from policies.runs.cluster.turns import RunShare
from policies.runs.stages.pace import builders_at_first


@dataclass(frozen=True)
class AbsentDevices:
    """Devices of the fleet that have not answered when a run begins."""

    expected: Mapping[str, str] = field(default_factory=dict)
    """The class of each device that joins later, by name; empty if the class is not known until the device answers."""
    unknown: frozenset[str] = frozenset()
    """Devices that are out of use and whose class is not known: they are not part of the run until somebody resumes
    them."""
    notices: tuple[str, ...] = ()
    """Lines for people, one for each absent device."""


class RunHosts:
    """The started builders and devices of a run. Make one with :meth:`start`; :meth:`close` ends their processes."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: FleetConfig,
        run_id: str,
        actors: HostActors,
        fingerprints: Mapping[str, Fingerprint],
        absent: AbsentDevices,
        in_turns: bool = False,
    ) -> None:
        self.cluster = cluster
        self.fleet = fleet
        self.run_id = run_id
        self.actors = actors
        self.fingerprints = fingerprints
        """The fingerprint of each device that answered, by the device's name."""
        self.absent = absent
        self.in_turns = in_turns
        """True if other runs of the cluster may use the devices too."""
        self._closed = False

    @classmethod
    async def start(
        cls,
        cluster: Cluster,
        fleet: FleetConfig,
        run_id: str,
        artifacts: Path | None = None,
        *,
        open_device: OpenDevice = open_device,
        make_worker: Callable[[], Worker] | None = None,
        share: RunShare | None = None,
        report_wait: Callable[[str], None] = lambda _: None,
    ) -> RunHosts:
        """Start the builders and the devices, and wait until each device has answered with its fingerprint or counts as
        absent.

        An absent device joins once it answers. A device that people have taken out of use is not asked. If the fleet
        file gives its class, and another device of that class answers, it joins that class when people resume it.
        Otherwise it is not part of the run until :meth:`actors.tuning_session.TuningSession.admit_device`.

        Args:
            cluster, fleet, run_id, artifacts, open_device, make_worker: see
                :class:`actors.host_actors.HostActors`.
            share: this run among the runs of the cluster, which take turns on the devices; None if no other run uses
                them.
            report_wait: is called with a text about a wait that takes long, and with an empty text once the wait is
                over.

        Raises :class:`fleet_tune.base.errors.FleetFileError` if no device answers (the error names one), or if a device
        has a wrong target or another version of TVM. Raises VersionsDifferError if another machine of the cluster has
        another version of TVM. All that was started by then is ended.
        """
        turns = None if share is None else RunTurns(share)
        actors = HostActors(cluster, fleet, run_id, artifacts, open_device, make_worker, turns)
        _window_of(actors)  # an error of its folder is raised before anything starts
        try:
            unused = await out_of_use(fleet, actors.configs)
            await actors.start(unused)
            asked = {name: actor for name, actor in actors.devices.items() if name not in unused}
            answers = await (
                fingerprints_in_turn(asked, report_wait) if turns is not None else fingerprints(asked, report_wait)
            )
            await actors.check_builder_versions(actors.builders)
            await actors.check_device_versions(asked)
            answered, errors = _answered(fleet, dict(zip(asked, answers, strict=True)))
            absent = absent_devices(fleet, actors.devices, answered, errors, unused)
            for name in absent.unknown:
                actors.end_device(name)
        except BaseException:
            await _end(cluster, actors)
            raise
        return cls(cluster, fleet, run_id, actors, answered, absent, turns is not None)

    @property
    def window(self) -> QuietWindow | None:
        """The quiet window of this machine; None if no device shares its cores."""
        return _window_of(self.actors)

    @property
    def classes(self) -> dict[str, str]:
        """The name of the class of each device that answered, by the device's name."""
        return {name: each.device_class.name for name, each in self.fingerprints.items()}

    def power_of(self, device: str, device_class: str) -> str:
        """Return the power mode in which this run measures a device: the mode in which it answered, or the mode of its
        class if the device joins later. Empty if no fingerprint tells the mode."""
        own = self.fingerprints.get(device)
        told = [each for each in self.fingerprints.values() if each.device_class.name == device_class]
        return next((each.power for each in ([own] if own is not None else told) if each.power), "")

    @property
    def members(self) -> dict[str, tuple[DeviceConfig, ...]]:
        """The devices that answered, by class."""
        return members_of(self.classes, self.actors.configs)

    def warm_up(self) -> None:
        """Start the workers of as many builders as the devices may keep busy, since something will be built. The other
        builders start their workers when there is enough to build."""
        builders = self.actors.builders
        first = sorted(builders)[: builders_at_first(len(self.actors.configs))]
        for actor, count in Counter(builders[number] for number in first).items():
            BuilderMachineClient(actor).warm_up(count)

    async def close(self) -> None:
        """End every process of the builders and devices."""
        if not self._closed:
            self._closed = True
            await _end(self.cluster, self.actors)


def absent_devices(
    fleet: FleetConfig,
    started: Collection[str],
    answered: Mapping[str, Fingerprint],
    errors: Mapping[str, DeviceUnreachableError],
    unused: Collection[str],
) -> AbsentDevices:
    """Return the devices without a fingerprint, and how the run treats them.

    Args:
        fleet: the devices in the order of the fleet file.
        started: devices that have a process.
        answered: the fingerprint of each device that answered.
        errors: the error of each device that was asked and did not answer.
        unused: devices that people have taken out of use.

    Raises FleetFileError if no device answered.
    """
    if not answered and not errors:
        assert fleet.source is not None
        raise FleetFileError(
            f"every device of {fleet.source.path} is out of use: {', '.join(sorted(unused))}",
            "bring one back with 'fleet-tune device resume'",
        )
    if not answered:
        name, error = next(iter(errors.items()))
        with fleet_file_errors(fleet, name):
            raise error
    classes = {fingerprint.device_class.name for fingerprint in answered.values()}
    expected: dict[str, str] = {}
    unknown: set[str] = set()
    notices: list[str] = []
    for config in fleet.devices:
        name = config.name
        if name in answered:
            continue
        device_class = config.device_class or ""
        device_class = device_class if device_class in classes else ""
        if name in errors:
            expected[name] = device_class
            notices.append(f"{errors[name]}: the run begins without it, and takes it when it answers")
        elif device_class and name in started:
            expected[name] = device_class
            notices.append(f"device {name} is out of use: it joins when it is resumed")
        else:
            unknown.add(name)
            notices.append(f"device {name} is out of use: it is asked what it is when it is resumed")
    return AbsentDevices(expected, frozenset(unknown), tuple(notices))


def members_of(classes: Mapping[str, str], configs: Mapping[str, DeviceConfig]) -> dict[str, tuple[DeviceConfig, ...]]:
    """The devices of each class. ``classes``: the class of each device by the device's name."""
    members: dict[str, tuple[DeviceConfig, ...]] = {}
    for name, device_class in classes.items():
        members[device_class] = (*members.get(device_class, ()), configs[name])
    return members


def _answered(
    fleet: FleetConfig, answers: Mapping[str, Fingerprint | BaseException]
) -> tuple[dict[str, Fingerprint], dict[str, DeviceUnreachableError]]:
    """Return the fingerprints of the devices that answered, and the errors of the devices that did not. Raise
    FleetFileError for a device whose answer is an error that a user can correct."""
    found: dict[str, Fingerprint] = {}
    errors: dict[str, DeviceUnreachableError] = {}
    for name, answer in answers.items():
        try:
            with fleet_file_errors(fleet, name, unreachable=False):
                if isinstance(answer, BaseException):
                    raise answer
                found[name] = answer
        except DeviceUnreachableError as error:
            errors[name] = error
        except LOST as error:
            errors[name] = DeviceUnreachableError(name, first_line(error))
    return found, errors


def _window_of(actors: HostActors) -> QuietWindow | None:
    return None if actors.windows is None else QuietWindow(str(actors.windows.folder), WINDOW_WAIT_SECS)


async def _end(cluster: Cluster, actors: HostActors) -> None:
    if not cluster.is_lost:
        await actors.close()
        actors.end()
