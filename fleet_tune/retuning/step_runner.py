"""Interface of the steps that the service runs outside of its own process. Each step has a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet_tune.base.config.retune_file import NetworkConfig
from policies.retuning.rules import Moment
from policies.retuning.slowdown import Baseline, Timed
from policies.retuning.state import DeviceAnswer

HOOK_SECS = 300.0
PRUNE_SECS = 3600.0
"""Time limits of a hook, and of pruning a store."""


class StoppedError(Exception):
    """The service has to end: the present step was ended early."""


class StepError(Exception):
    """A step failed; ``str`` says why in one line."""


class OtherNetworkError(StepError):
    """The folder of a run belongs to another network, although the network's file is the same: a file that it reads has
    changed."""


@dataclass(frozen=True)
class TuneOutcome:
    """End of a tuning run."""

    folder: Path | None
    """Folder with the network, as ``fleet-tune tune`` leaves it, and with the inputs on which it was compared. None if
    there is no network; see ``problem``."""
    problem: str = ""
    """Reason why there is no network."""
    tuned_secs: float = 0.0
    """Seconds of tuning."""
    secs: float | None = None
    """Latency. None if it was not timed."""
    untuned_secs: float | None = None
    """Latency without tuning. None if it was not timed."""
    trials: int = 0
    """Trials of this run."""


@dataclass(frozen=True)
class PairedRun:
    """One run of each of two versions in turn, and of the probe, in seconds."""

    last_secs: float
    new_secs: float
    probe_secs: float


@dataclass(frozen=True)
class VersionComparison:
    """Comparison of two versions on a device."""

    turns: tuple[PairedRun, ...] = ()
    """Pairs of runs."""
    last_problem: str = ""
    """Reason why the last version does not run on the device, while the new one does. Empty if both run."""


class StepRunner(Protocol):
    """Runner of the steps. A step that uses devices ends after ``limit_secs``. It raises :class:`StepError` if it fails
    or takes longer, :class:`StoppedError` if the service has to end."""

    def digest(self, network: NetworkConfig) -> str:
        """Return a digest of the present content of the network's files. Raises :class:`StepError`."""

    def ask(self, devices: Sequence[str], limit_secs: float) -> list[DeviceAnswer]:
        """Ask the devices for their class and origin. A device that does not answer is returned with its problem."""

    def tune(
        self, network: NetworkConfig, devices: Sequence[str], folder: Path, secs: float, limit_secs: float
    ) -> TuneOutcome:
        """Tune a network for ``secs`` on devices of one class. A run that was begun in this folder before is resumed.
        Raises :class:`OtherNetworkError` too."""

    def compare(self, last: Path, new: Path, device: str, to_the_end: bool, limit_secs: float) -> VersionComparison:
        """Run two versions in turn until a duel between them is decided. ``to_the_end``: run all pairs of a duel,
        unless the new version is clearly faster before."""

    def check(self, folder: Path, device: str, against: Baseline | None, limit_secs: float) -> tuple[Timed, ...]:
        """Run a version in turn with the probe, until it is clear whether it is slower than ``against``."""

    def prune(self, store: Path, most_mb: int) -> int:
        """Prune a record store that is larger than ``most_mb`` MiB, and return the number of removed records."""

    def hook(self, words: Sequence[str], about: dict[str, str]) -> str:
        """Run the hook with these environment variables. Return the reason why it failed; empty if it did not."""

    def moment(self) -> Moment:
        """Return the present time."""

    def wait(self, secs: float) -> None:
        """Wait for so many seconds, or until the service has to end."""

    @property
    def stopping(self) -> bool:
        """True if the service has to end."""
