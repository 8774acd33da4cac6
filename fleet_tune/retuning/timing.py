"""Comparison of versions of a network on a device. They run in turn, with the device's probe between them.

Every run of a pair loads its network anew, because the addresses of tensors change the time by up to a tenth. Networks
run on the device over a session of its server, also on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devices.networks.compiled.network_files import NetworkFiles
from devices.networks.compiled.tensor_file import read
from devices.timing.network_device import NetworkDevice
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.errors import NetworkRunError, OutputFolderError, UncheckedError
from fleet_tune.retuning.step_runner import PairedRun, StepError, VersionComparison
from fleet_tune.retuning.version_repository import INPUTS
from fleet_tune.runs.fleet.device_access import opened, reached
from policies.measuring.duel import MAX_PAIRS, challenger_first, judged
from policies.retuning.slowdown import Baseline, Timed, found

_RUN_SECS = 0.5
_FIRST_PAIRS = 8
"""Number of pairs for a version that has no baseline on the device."""


class Timer:
    """Timer of versions on one device."""

    def __init__(self, device: NetworkDevice) -> None:
        self._device = device

    def secs(self, folder: Path) -> float:
        """Return the median seconds of a run of the network in ``folder``, on the inputs in that folder. Raises
        NetworkRunError if it fails, UncheckedError if it cannot be run."""
        files = NetworkFiles.read(folder)
        inputs = list(read(folder / INPUTS).values())
        return self._device.load_network(files.library, files.arguments(inputs)).measure_within(_RUN_SECS)

    def probe_secs(self) -> float:
        """Return the seconds of a run of the probe."""
        return self._device.probe_secs()


@contextmanager
def timer_on(config: DeviceConfig, address: str | None = None) -> Iterator[Timer]:
    """Open a device of the fleet. ``address``: the cluster, if one of its machines drives the device. Raises StepError
    for a device that answers from a dataset, and the errors of opening a device."""
    with reached([config], address), opened(config) as device:
        if not isinstance(device, NetworkDevice):
            raise StepError(f"device {config.name} answers from a dataset and runs nothing")
        yield Timer(device)


def compare_versions(timer: Timer, last: Path, new: Path, to_the_end: bool) -> VersionComparison:
    """See :meth:`fleet_tune.retuning.step_runner.StepRunner.compare`. Raises FleetTuneError if the new version
    does not run."""
    try:
        timer.secs(last)
    except (NetworkRunError, UncheckedError, OutputFolderError) as error:  # its files may be damaged
        timer.secs(new)  # raises if the device is at fault
        return VersionComparison(last_problem=str(error))
    timer.secs(new)
    turns: list[PairedRun] = []
    while len(turns) < MAX_PAIRS:
        probe_secs = timer.probe_secs()
        if challenger_first(len(turns)):
            new_secs = timer.secs(new)
            last_secs = timer.secs(last)
        else:
            last_secs = timer.secs(last)
            new_secs = timer.secs(new)
        turns.append(PairedRun(last_secs, new_secs, probe_secs))
        verdict = judged([math.log(turn.new_secs / turn.last_secs) for turn in turns])
        if verdict is not None and (verdict.faster or not to_the_end):
            break
    return VersionComparison(tuple(turns))


def time_with_probe(
    timer: Timer, folder: Path, against: Baseline | None, slower: float, drift: float
) -> tuple[Timed, ...]:
    """See :meth:`fleet_tune.retuning.step_runner.StepRunner.check`. Raises FleetTuneError if the version
    does not run."""
    timer.secs(folder)  # the first load is slow
    pairs: list[Timed] = []
    while len(pairs) < (_FIRST_PAIRS if against is None else MAX_PAIRS):
        probe_secs = timer.probe_secs()
        pairs.append(Timed(timer.secs(folder), probe_secs))
        if against is not None and found(pairs, against, slower, drift) is not None:
            break
    return tuple(pairs)
