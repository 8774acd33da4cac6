"""Versions of a network in turn on a device, with its probe between them: what decides what is published.

Every run of a pair loads its network anew, for where tensors lie makes up to a tenth of the time. Runs on the device
over a session of its server, also on this machine.
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
"""Of a version that has no baseline on the device."""


class Timer:
    """Timer of versions on one device."""

    def __init__(self, device: NetworkDevice) -> None:
        self._device = device

    def secs(self, folder: Path) -> float:
        """Median seconds of a run of the network in ``folder`` on the inputs in it. Raises NetworkRunError where it
        fails, UncheckedError where it cannot be run."""
        files = NetworkFiles.read(folder)
        inputs = list(read(folder / INPUTS).values())
        return self._device.load_network(files.library, files.arguments(inputs)).measure_within(_RUN_SECS)

    def probe_secs(self) -> float:
        """Seconds of the probe."""
        return self._device.probe_secs()


@contextmanager
def timer_on(config: DeviceConfig, address: str | None = None) -> Iterator[Timer]:
    """A device of the fleet; ``address``: of the cluster a machine of which may drive it. Raises StepError for one that
    answers from a dataset, and as opening it does."""
    with reached([config], address), opened(config) as device:
        if not isinstance(device, NetworkDevice):
            raise StepError(f"device {config.name} answers from a dataset and runs nothing")
        yield Timer(device)


def compare_versions(timer: Timer, last: Path, new: Path, to_the_end: bool) -> VersionComparison:
    """See :meth:`fleet_tune.retuning.step_runner.StepRunner.compare`. Raises FleetTuneError where the new one does not
    run."""
    try:
        timer.secs(last)
    except (NetworkRunError, UncheckedError, OutputFolderError) as error:  # the last: its files are damaged
        timer.secs(new)  # else it is the device
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
    """See :meth:`fleet_tune.retuning.step_runner.StepRunner.check`. Raises FleetTuneError where it does not run."""
    timer.secs(folder)  # what is loaded for the first time is slow
    pairs: list[Timed] = []
    while len(pairs) < (_FIRST_PAIRS if against is None else MAX_PAIRS):
        probe_secs = timer.probe_secs()
        pairs.append(Timed(timer.secs(folder), probe_secs))
        if against is not None and found(pairs, against, slower, drift) is not None:
            break
    return tuple(pairs)
