"""A fleet in virtual time for the service that keeps networks tuned: what it asks for takes time, which passes at once.

A version is a folder with a ``network.so`` that says how good its schedules are; what it takes on a device follows from
that, from what was changed since it was made, and from how fast the device is at the moment. Pairs are noisy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from devices.networks.compiled.tensor_file import digest
from fleet_tune.base.config.retune_file import NetworkConfig
from fleet_tune.retuning.step_runner import PairedRun, StepError, StoppedError, TuneOutcome, VersionComparison
from policies.measuring.duel import MAX_PAIRS, judged
from policies.retuning.rules import Moment
from policies.retuning.slowdown import Baseline, Timed, found
from policies.retuning.state import DeviceAnswer

BEGIN = 1.75e9
PROBE_SECS = 1e-3
ASK_SECS, RUN_OVERHEAD_SECS, MEET_SECS, CHECK_SECS = 20.0, 90.0, 40.0, 25.0
SLOWER, DRIFT = 0.05, 0.25


class KilledError(BaseException):
    """kill -9 of the service."""


@dataclass
class WorldDevice:
    """``speed``: how many times slower than usual everything is. ``odd``: how many times slower networks are on it."""

    name: str
    device_class: str
    lost: bool = False
    speed: float = 1.0
    odd: float = 1.0


@dataclass(frozen=True)
class Usage:
    """The times at which devices of a class were really used."""

    device_class: str
    began: float
    ended: float
    devices: int


@dataclass
class World:
    """The steps of the service. ``base_secs``: of each network as it was imported. ``changes``: what happens when;
    ``kills``: when the service is killed."""

    devices: list[WorldDevice]
    base_secs: dict[str, float]
    seed: int = 0
    now: float = BEGIN
    digests: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    penalties: list[tuple[float, str, float]] = field(
        default_factory=list
    )  # since when, class, factor for what is older
    changes: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    tuned: list[tuple[float, str, str]] = field(default_factory=list)  # begun: when, network, class
    hooks: list[dict[str, str]] = field(default_factory=list)
    hook_problem: str = ""
    records_a_run: int = 0
    until: float = math.inf
    on_records: Callable[[Path, int], None] | None = None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.changes.sort(key=lambda change: change[0])
        self.kills.sort()
        self.digests = dict.fromkeys(self.base_secs, "first") | self.digests

    # time

    def moment(self) -> Moment:
        return Moment(self.now, self.now % 86400.0)

    @property
    def stopping(self) -> bool:
        return self.now >= self.until

    def wait(self, secs: float) -> None:
        self._pass(max(secs, 0.01))

    def _pass(self, secs: float) -> None:
        end = self.now + secs
        while self.changes and self.changes[0][0] <= end:
            at, change = self.changes.pop(0)
            self.now = max(self.now, at)
            change()
        if self.kills and self.kills[0] <= end:
            self.now = max(self.now, self.kills.pop(0))
            raise KilledError
        self.now = end

    def _use(self, device_class: str, names: Sequence[str], secs: float, limit_secs: float) -> None:
        """Time passes in which these devices are used. Raises StepError where one is lost, or it takes too long."""
        began = self.now
        try:
            self._pass(min(secs, limit_secs))
        finally:
            self.usage.append(Usage(device_class, began, self.now, len(names)))
        if secs > limit_secs:
            raise StepError("it took longer than it may")
        if any(self._device(name).lost for name in names):
            raise StepError("a device was lost")

    # what is true

    def true_secs(self, folder: Path, device: WorldDevice) -> float:
        """Return the seconds of a version on a device now, without noise."""
        made = json.loads((folder / "network.so").read_text())
        secs: float = self.base_secs[made["network"]] * made["quality"] * device.speed * device.odd
        for since, device_class, factor in self.penalties:
            if device_class == device.device_class and made["at"] < since <= self.now:
                secs *= factor
        return secs

    def _device(self, name: str) -> WorldDevice:
        return next(each for each in self.devices if each.name == name)

    def _noisy(self, secs: float) -> float:
        width = 0.01 if self.rng.random() < 0.95 else 0.1
        return secs * math.exp(width * self.rng.standard_normal())

    # steps of the service

    def digest(self, network: NetworkConfig) -> str:
        return self.digests[network.name]

    def ask(self, devices: Sequence[str], limit_secs: float) -> list[DeviceAnswer]:
        asked = [each for each in self.devices if each.name in devices]
        began = self.now
        try:
            self._pass(min(ASK_SECS, limit_secs))
        finally:
            for name in {each.device_class for each in asked}:
                online = [each for each in asked if each.device_class == name and not each.lost]
                self.usage.append(Usage(name, began, self.now, len(online)))
        answers = []
        for each in self.devices:
            if each.name not in devices:
                continue
            if each.lost:
                answers.append(DeviceAnswer(each.name, problem="it does not answer"))
            else:
                answers.append(
                    DeviceAnswer(each.name, each.device_class, self.origins.get(each.device_class, "driver 1"))
                )
        return answers

    def tune(
        self, network: NetworkConfig, devices: Sequence[str], folder: Path, secs: float, limit_secs: float
    ) -> TuneOutcome:
        device_class = self._device(devices[0]).device_class
        self.tuned.append((self.now, network.name, device_class))
        self._use(device_class, devices, secs + RUN_OVERHEAD_SECS, limit_secs)
        folder.mkdir(parents=True, exist_ok=True)
        effort_file, records = folder / "effort", folder / "records.db"
        effort = secs * len(devices) + (float(effort_file.read_text()) if effort_file.exists() else 0.0)
        effort_file.write_text(str(effort))
        if self.on_records is not None:
            self.on_records(records, self.records_a_run)
        quality = (0.3 + 0.5 * (1 + effort / 1200.0) ** -0.5) * math.exp(0.01 * abs(self.rng.standard_normal()))
        before = None
        with contextlib.suppress(FileNotFoundError, ValueError):  # what is damaged is compiled again
            before = json.loads((folder / "network.so").read_text())
        if before is None or quality < before["quality"]:
            made = {"network": network.name, "digest": self.digests[network.name], "quality": quality, "at": self.now}
            library = json.dumps(made)
            # As a run does it: by renaming, so that versions that share the file keep theirs.
            for name, text in (
                ("network.so", library),
                (
                    "manifest.json",
                    json.dumps(
                        {
                            "made_of": hashlib.blake2b(library.encode()).hexdigest(),
                            "files": {"network.so": digest([library.encode()])},
                        }
                    ),
                ),
            ):
                (folder / f"{name}.part").write_text(text)
                (folder / f"{name}.part").replace(folder / name)
        here = self._device(devices[0])
        true = self.true_secs(folder, here)
        return TuneOutcome(
            folder, "", secs, self._noisy(true), self._noisy(self.base_secs[network.name] * here.speed), 40
        )

    def compare(self, last: Path, new: Path, device: str, to_the_end: bool, limit_secs: float) -> VersionComparison:
        here = self._device(device)
        self._use(here.device_class, [device], MEET_SECS, limit_secs)
        turns: list[PairedRun] = []
        while len(turns) < MAX_PAIRS:
            turns.append(
                PairedRun(
                    self._noisy(self.true_secs(last, here)),
                    self._noisy(self.true_secs(new, here)),
                    self._noisy(PROBE_SECS * here.speed),
                )
            )
            verdict = judged([math.log(each.new_secs / each.last_secs) for each in turns])
            if verdict is not None and (verdict.faster or not to_the_end):
                break
        return VersionComparison(tuple(turns))

    def check(self, folder: Path, device: str, against: Baseline | None, limit_secs: float) -> tuple[Timed, ...]:
        here = self._device(device)
        self._use(here.device_class, [device], CHECK_SECS, limit_secs)
        pairs: list[Timed] = []
        while len(pairs) < MAX_PAIRS:
            pairs.append(Timed(self._noisy(self.true_secs(folder, here)), self._noisy(PROBE_SECS * here.speed)))
            if against is not None and found(pairs, against, SLOWER, DRIFT) is not None:
                break
        return tuple(pairs)

    def prune(self, store: Path, most_mb: int) -> int:  # noqa: ARG002
        return 0

    def hook(self, words: Sequence[str], about: dict[str, str]) -> str:  # noqa: ARG002
        self.hooks.append(about)
        return self.hook_problem


__all__ = ["BEGIN", "KilledError", "StoppedError", "Usage", "World", "WorldDevice"]
