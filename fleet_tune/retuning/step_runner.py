"""Interface of the steps that the service has others do. Each step ends."""

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
"""What a hook, and pruning a store, may take."""


class StoppedError(Exception):
    """The service is to end: what was being done was ended before its time."""


class StepError(Exception):
    """A step failed; ``str`` says why in one line."""


class OtherNetworkError(StepError):
    """The folder of a run is of another network, though its file is the same: what the file reads has changed."""


@dataclass(frozen=True)
class TuneOutcome:
    """End of a tuning run."""

    folder: Path | None
    """Folder with the network, as ``fleet-tune tune`` leaves it, and the inputs on which it was compared. None: see
    ``problem``."""
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
    """Reason why the last version does not run there, while the new one does. Empty if both run."""


class StepRunner(Protocol):
    """Runner of the steps. A step that uses devices ends after ``limit_secs``. It raises :class:`StepError` if it fails
    or takes longer, :class:`StoppedError` if the service is to end."""

    def digest(self, network: NetworkConfig) -> str:
        """Return a digest of the network's files, as they are now. Raises :class:`StepError`."""

    def ask(self, devices: Sequence[str], limit_secs: float) -> list[DeviceAnswer]:
        """Ask the devices what they are. Those that do not answer are returned with their problem."""

    def tune(
        self, network: NetworkConfig, devices: Sequence[str], folder: Path, secs: float, limit_secs: float
    ) -> TuneOutcome:
        """Tune a network for ``secs`` on devices of one class, in a folder that goes on where it was. Raises
        :class:`OtherNetworkError` too."""

    def compare(self, last: Path, new: Path, device: str, to_the_end: bool, limit_secs: float) -> VersionComparison:
        """Run two versions in turn, until a duel between them is decided. ``to_the_end``: as many runs as a duel has,
        unless the new one is clearly faster."""

    def check(self, folder: Path, device: str, against: Baseline | None, limit_secs: float) -> tuple[Timed, ...]:
        """Run a version in turn with the probe, until it is clear whether it is slower than ``against``."""

    def prune(self, store: Path, most_mb: int) -> int:
        """Prune a record store that is larger, and return the number of removed records."""

    def hook(self, words: Sequence[str], about: dict[str, str]) -> str:
        """Run the hook with these variables. Returns the reason why it failed; empty if it did not."""

    def moment(self) -> Moment:
        """Return the present time."""

    def wait(self, secs: float) -> None:
        """Wait so long, or until the service is to end."""

    @property
    def stopping(self) -> bool:
        """True if the service is to end."""
