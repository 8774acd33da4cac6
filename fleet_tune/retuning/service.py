"""The service: it executes the actions of :class:`policies.retuning.retuner.Retuner`, publishes versions, and keeps the
state."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fleet_tune.base.config.retune_file import NetworkConfig, RetuneConfig, parse_hours
from fleet_tune.base.errors import RecordStoreError, RetuneError, UnreadableRecordError, UserError
from fleet_tune.base.records.datasets.sources import RECORDS_FILE
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, take_lock
from fleet_tune.base.records.sharing.store_place import shown
from fleet_tune.base.records.sharing.team_lock import TeamLock
from fleet_tune.base.records.stores.origin import decode_origin
from fleet_tune.base.version import __version__
from fleet_tune.retuning.state_file import STATE_FILE, load_state, save_state
from fleet_tune.retuning.step_runner import (
    HOOK_SECS,
    PRUNE_SECS,
    OtherNetworkError,
    StepError,
    StepRunner,
    StoppedError,
    TuneOutcome,
    VersionComparison,
)
from fleet_tune.retuning.version_repository import MANIFEST, PublishedVersion, VersionRepository
from policies.measuring.duel import Verdict, judged
from policies.retuning.allowance import Hours
from policies.retuning.benefit import DAY_SECS
from policies.retuning.publishing import DeviceComparison, decide, should_continue
from policies.retuning.retuner import Retuner
from policies.retuning.rules import Rules, Subject
from policies.retuning.slowdown import Baseline, Timed, baseline
from policies.retuning.state import (
    Action,
    AskDevices,
    CheckVersion,
    CheckVersionResult,
    Deployment,
    DeviceAnswer,
    LookAtFiles,
    PendingHook,
    ServiceEvent,
    ServiceState,
    TuneDeployment,
    TuneDeploymentResult,
    Wait,
)

VERSIONS, WORK = "networks", "work"
LOCK_FILE = "service.lock"
WORK_MB = 512
"""Size in MiB above which a run's own record store is pruned."""
_LEAST_LIMIT_SECS = 5.0
# Spare time beyond the limit of a step: for reading large files, writing the state, and copying a version.
_SPARE_SECS = 300.0
_FINGERPRINT = "model_fingerprint"  # stored in manifests: key of the fingerprint of the network's content
PROBLEMS = ("problem", "lost", "hook", "device")
"""Kinds of events that somebody should look at."""
_LOG = logging.getLogger(__name__)


def rules_of(config: RetuneConfig) -> Rules:
    """Return the rules that a file gives, as a value of the policy."""
    time, watch = config.time, config.watch
    return Rules(
        subjects=tuple(
            Subject(each.name, each.calls_per_day, None if each.classes is None else frozenset(each.classes))
            for each in config.networks
        ),
        devices=tuple(device.name for device in config.fleet.devices),
        share=time.share,
        hours=None if time.hours is None else Hours(*parse_hours(time.hours)),
        span_secs=time.span,
        payback_days=time.payback / DAY_SECS,
        files_every_secs=watch.files_every,
        devices_every_secs=watch.devices_every,
        slower=watch.slower,
        drift=watch.drift,
        again_secs=watch.again,
        age_secs=watch.age,
    )


def repository_of(config: RetuneConfig) -> VersionRepository:
    """Return the repository of the versions that a service with this file publishes."""
    return VersionRepository(config.folder / VERSIONS, config.publish.versions)


def differences(then: str, now: str) -> str:
    """Describe the parts in which two origins differ."""
    with contextlib.suppress(UnreadableRecordError):
        return "; ".join(decode_origin(then).differences(decode_origin(now)))
    return ""


CheckSoleOwner = Callable[[], None]
"""Raises :class:`RetuneError` if another service has the store by now."""


@contextlib.contextmanager
def held(config: RetuneConfig) -> Iterator[CheckSoleOwner]:
    """Lock the folder and the store for this service until the block is left. A team's store is locked on its server,
    for all machines of the team. Raises :class:`RetuneError` at once if another service has one of them.

    Yields a check of the team's store. The check passes while the server does not answer, so it has to be repeated."""
    with contextlib.ExitStack() as stack:
        for what, path in (
            (f"the folder {config.folder}", config.folder / LOCK_FILE),
            (f"the store {config.store}", config.store.with_name(f"{config.store.name}.retune.lock")),
        ):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = take_lock(path)
            except LockedError as error:
                raise RetuneError(
                    f"another service ({error.who}) keeps networks tuned with {what}",
                    "end that one, or give another in the file",
                ) from None
            except OSError as error:
                raise RetuneError(f"{what} cannot be locked: {error.strerror}", "give another in the file") from error
            stack.callback(release_lock, lock)
        check_sole_owner: CheckSoleOwner = lambda: None  # noqa: E731
        if config.server:
            check_sole_owner = partial(
                _check_alone, stack.enter_context(contextlib.closing(TeamLock(config.server))), config
            )
            check_sole_owner()
        yield check_sole_owner


def _check_alone(lock: TeamLock, config: RetuneConfig) -> None:
    try:
        key = lock.other()
    except RecordStoreError as error:  # the service goes on with the local copy of the records
        _LOG.debug("whether another service keeps networks tuned with the store is not known: %s", error.problem)
        return
    if key:
        problem = f"another service (with the key {key}) keeps networks tuned with the store {shown(config.server)}"
        raise RetuneError(problem, "end that one, or give another store in the file")


@dataclass
class Service:
    """The service: it does one step after the other.

    ``is_changed`` returns true if the service's own files have changed: it then has to start again with their content.
    ``check_sole_owner`` raises if another service has the store. ``doing`` is the present action.
    """

    config: RetuneConfig
    steps: StepRunner
    is_changed: Callable[[], bool] | None = None
    check_sole_owner: CheckSoleOwner = lambda: None

    def __post_init__(self) -> None:
        self._path = self.config.folder / STATE_FILE
        self.state: ServiceState = load_state(self._path)
        self.retuner = Retuner(rules_of(self.config), self.state, differences)
        self.retuner.on_event = _log
        self.repository = repository_of(self.config)
        self._networks: Mapping[str, NetworkConfig] = {each.name: each for each in self.config.networks}
        self.doing: Action | None = None
        self._due = math.inf

    def late_secs(self, now: float) -> float:
        """Return the seconds by which the present step has exceeded its time limit; 0 while it has not. A step is ended
        by force at its limit: a larger value means that it does not return even so."""
        return max(0.0, now - self._due)

    def run(self, once: bool = False) -> None:
        """Run until the service has to stop, or its files have changed. ``once``: return as soon as the next action is
        to wait.

        Raises :class:`UserError` if the state cannot be written at the start, RetuneError if another service has the
        store by now.
        """
        self._note_pending_hooks()
        self.retuner.resumed(self._now())
        save_state(self._path, self.state)  # raises: at the start the user can mend a folder that is not writable
        self._call_hooks()
        self._remove_work_of_others()
        while not self.steps.stopping:
            if self.is_changed is not None and self.is_changed():
                return
            action = self.retuner.next(self.steps.moment())
            self.doing = action
            self._may_take(0.0 if isinstance(action, LookAtFiles | Wait) else action.limit_secs)
            if isinstance(action, Wait):
                if once:
                    return
                self._due += max(0.0, action.until - self._now())
                self.steps.wait(max(0.0, action.until - self._now()))
                continue
            try:
                self.do(action)
            except StoppedError:
                self.retuner.interrupted(self._now())
                self._save()
                return

    def do(self, action: LookAtFiles | AskDevices | CheckVersion | TuneDeployment) -> None:
        """Do one step. A failure is reported as an event, and the step is tried again later."""
        if isinstance(action, LookAtFiles):
            self._look()
            return
        self.retuner.begun(action, self._now())
        self._save()
        if isinstance(action, AskDevices):
            self._ask(action)
        elif isinstance(action, CheckVersion):
            self._check(action)
        else:
            self._tune(action)
        self._save()

    def _look(self) -> None:
        self.check_sole_owner()
        files: dict[str, str] = {}
        problems: dict[str, str] = {}
        for name, network in self._networks.items():
            try:
                files[name] = self.steps.digest(network)
            except StepError as error:
                problems[name] = str(error)
        is_new = self.retuner.looked(files, problems, self._now())
        for each in self.retuner.view.active():
            damage = self.repository.damage(each.network, each.device_class)
            current = None if damage else self.repository.current(each.network, each.device_class)
            number = None if current is None else current.number
            if number != each.version:
                secs = None if current is None else current.secs
                self.retuner.replaced(each, number, secs, self._now(), damage)
                is_new = True
        if is_new:
            self._save()

    def _ask(self, action: AskDevices) -> None:
        try:
            devices = self.steps.ask(action.devices, action.limit_secs)
        except StepError as error:
            devices = [DeviceAnswer(name, problem=str(error)) for name in action.devices]
        self.retuner.asked(devices, self._now())

    def _check(self, action: CheckVersion) -> None:
        each = self._deployment(action.network, action.device_class)
        current = self.repository.current(action.network, action.device_class)
        try:
            if current is None:
                raise StepError("it has no version any more")
            against = each.baselines.get(action.device)
            result = CheckVersionResult(self.steps.check(current.folder, action.device, against, action.limit_secs))
        except StepError as error:
            result = CheckVersionResult(problem=str(error))
            self.repository.damage(action.network, action.device_class, anew=True)  # the next look finds the damage
        self.retuner.checked(action, result, self._now())

    def _tune(self, action: TuneDeployment) -> None:
        deadline = self._now() + action.limit_secs
        each = self._deployment(action.network, action.device_class)
        before = each.version
        try:
            result = self._tuned(action, each, deadline)
        except StepError as error:
            result = TuneDeploymentResult(problem=str(error))
        except UserError as error:  # the new version cannot be written
            result = TuneDeploymentResult(problem=error.problem)
        self.retuner.tuned(action, result, self._now())
        if result.published:
            self.state.untold.append(PendingHook(action.network, action.device_class, before))
            self._save()  # the hook may take minutes
            self._call_hooks()
        self._prune(self._work_folder(action) / RECORDS_FILE, WORK_MB)
        if self.config.store_mb is not None:
            self._prune(self.config.store, self.config.store_mb)

    def _tuned(self, action: TuneDeployment, each: Deployment, deadline: float) -> TuneDeploymentResult:
        folder = self._work_folder(action)
        self._remove_other_work(folder)
        ran = self._ran(action, folder, deadline)
        if ran.folder is None:
            raise StepError(ran.problem or "there is no network")
        made_of = str(_manifest(ran.folder)["made_of"])
        current = self.repository.current(action.network, action.device_class)
        damage = self.repository.damage(action.network, action.device_class)
        if damage:
            if self.repository.is_withdrawn(action.network, action.device_class, made_of):
                raise StepError(f"{damage}, and the best known was rolled back: go back to a version that is whole")
            return self._published(action, ran, ran.folder, damage, ran.secs, 0.0, {}, [])
        made_for = None if current is None else current.provenance.get("network", {}).get("digest")
        # ``made_for`` differs if a service was killed after it had published and before it could note the digest.
        if current is not None and action.digest in (each.digest, made_for):
            if made_for != action.digest:
                return self._kept(
                    ran, current, "the current version is of another network, to which it was rolled back"
                )
            if current.manifest.get(_FINGERPRINT) != _manifest(ran.folder).get(_FINGERPRINT):
                why = "the network has changed, and its file has not"
                return self._published(action, ran, ran.folder, why, ran.secs, 0.0, {}, [])
            if current.made_of == made_of:
                return self._kept(ran, current, "the best known is in the current version already")
            if self.repository.is_withdrawn(action.network, action.device_class, made_of):
                return self._kept(ran, current, "the best known was rolled back")
            return self._met(action, ran, ran.folder, current, deadline)
        why = "the first version" if current is None else "the network has changed"
        # The gain over the untuned network.
        gain = math.log(ran.untuned_secs / ran.secs) if ran.untuned_secs and ran.secs else 0.0
        return self._published(action, ran, ran.folder, why, ran.secs, gain, {}, [])

    def _ran(self, action: TuneDeployment, folder: Path, deadline: float) -> TuneOutcome:
        network = self._networks[action.network]
        try:
            return self.steps.tune(network, action.devices, folder, action.secs, self._left_secs(deadline))
        except OtherNetworkError:
            shutil.rmtree(folder, ignore_errors=True)  # its measurements are in the store
            return self.steps.tune(network, action.devices, folder, action.secs, self._left_secs(deadline))

    def _kept(self, ran: TuneOutcome, current: PublishedVersion, why: str) -> TuneDeploymentResult:
        return TuneDeploymentResult(tuned_secs=ran.tuned_secs, secs=current.secs, version=current.number, why=why)

    def _met(
        self, action: TuneDeployment, ran: TuneOutcome, new: Path, current: PublishedVersion, deadline: float
    ) -> TuneDeploymentResult:
        """Compare the new network with the last version, on one device of the class after the other. Publish it if it
        is faster, or if the last version does not run."""
        comparisons: list[DeviceComparison] = []
        baselines: list[tuple[Baseline, Baseline]] = []  # of the last version and of the new one
        devices = action.devices[: self.config.publish.devices]
        for device in devices:
            comparison = self.steps.compare(current.folder, new, device, bool(comparisons), self._left_secs(deadline))
            if comparison.last_problem:
                why = f"the last version does not run on {device}: {comparison.last_problem}"
                return self._published(action, ran, new, why, ran.secs, 0.0, {}, [])
            comparisons.append(DeviceComparison(device, verdict_of(comparison)))
            baselines.append(baselines_of(comparison))
            if not should_continue(comparisons):
                break
        decision = decide(comparisons)
        gain = -math.log(comparisons[0].verdict.ratio)
        taken = {
            one.device: both[1 if decision.publish else 0] for one, both in zip(comparisons, baselines, strict=True)
        }
        secs = next(iter(taken.values())).network_secs
        if not decision.publish:
            return TuneDeploymentResult(
                tuned_secs=ran.tuned_secs,
                secs=secs,
                log_gain=gain,
                version=current.number,
                baselines=taken,
                why=decision.why,
            )
        compared = [
            {"device": one.device, "ratio": one.verdict.ratio, "error": one.verdict.error, "pairs": one.verdict.pairs}
            for one in comparisons
        ]
        return self._published(action, ran, new, decision.why, secs, gain, taken, compared)

    def _published(
        self,
        action: TuneDeployment,
        ran: TuneOutcome,
        new: Path,
        why: str,
        secs: float | None,
        gain: float,
        baselines: dict[str, Baseline],
        compared: list[dict[str, Any]],
    ) -> TuneDeploymentResult:
        network = self._networks[action.network]
        worst = max(compared, key=lambda one: float(one["ratio"]), default=None)
        provenance = {
            "why": why,
            "triggers": [str(trigger) for trigger in action.triggers],
            "compared": compared,
            "worst": worst,
            "secs": secs,
            "untuned_secs": ran.untuned_secs,
            "trials": ran.trials,
            "tuned_secs": ran.tuned_secs,
            "devices": action.devices,
            "network": {"path": network.path, "digest": action.digest, "calls_per_day": network.calls_per_day},
            "origin": action.origin,
            "fleet_tune": __version__,
        }
        version = self.repository.publish(action.network, action.device_class, new, provenance)
        return TuneDeploymentResult(
            tuned_secs=ran.tuned_secs,
            secs=secs,
            log_gain=gain,
            version=version.number,
            published=True,
            baselines=baselines,
            why=why,
        )

    def _may_take(self, secs: float) -> None:
        self._due = self._now() + secs + _SPARE_SECS

    def _note_pending_hooks(self) -> None:
        """Note a version for the hook if an earlier service published it and was killed before it could note it."""
        doing = self.state.doing
        if doing is not None and isinstance(doing.action, TuneDeployment):
            each = self.retuner.view.deployment(doing.action.network, doing.action.device_class)
            current = self.repository.current(doing.action.network, doing.action.device_class)
            if each is not None and current is not None and current.number > (each.version or 0):
                self.state.untold.append(PendingHook(each.network, each.device_class, each.version))

    def _call_hooks(self) -> None:
        """Call the hook for each version that it does not know yet. A failure is reported, and the version stays
        published."""
        while self.state.untold:
            each = self.state.untold[0]
            self._may_take(HOOK_SECS)
            try:
                problem = call_hook(
                    self.config, self.steps, self.repository, each.network, each.device_class, each.before
                )
            except StoppedError:
                return  # the hook is called when the service starts again
            if problem:
                self.state.hook_failures += 1
                text = f"the hook failed: {problem}"
                self.retuner.log_event(self._now(), "hook", text, each.network, each.device_class)
            del self.state.untold[0]
            self._save()

    def _prune(self, store: Path, most_mb: int) -> None:
        try:
            if store.exists() and store.stat().st_size > most_mb << 20:
                self._may_take(PRUNE_SECS)
                count = self.steps.prune(store, most_mb)
                self.retuner.log_event(self._now(), "pruned", f"{count} records of {store}")
        except (StepError, OSError) as error:
            self.retuner.log_event(self._now(), "problem", f"{store} is not pruned: {error}")

    def _work_folder(self, action: TuneDeployment) -> Path:
        """Return the work folder of a deployment. Each digest of the network and each origin has its own, so that a run
        finds only records there that count for it."""
        digests = "-".join(
            hashlib.blake2b(text.encode(), digest_size=6).hexdigest() for text in (action.digest, action.origin)
        )
        return self.config.folder / WORK / action.network / action.device_class / digests

    def _remove_other_work(self, folder: Path) -> None:
        """Remove the work of earlier networks or origins. Their measurements are in the store."""
        with contextlib.suppress(OSError):
            for other in folder.parent.iterdir():
                if other != folder:
                    shutil.rmtree(other, ignore_errors=True)

    def _remove_work_of_others(self) -> None:
        """Remove the work of networks that the file does not name any more. Their versions stay."""
        with contextlib.suppress(OSError):
            for folder in (self.config.folder / WORK).iterdir():
                if folder.name not in self._networks:
                    shutil.rmtree(folder, ignore_errors=True)

    def _deployment(self, network: str, device_class: str) -> Deployment:
        each = self.retuner.view.deployment(network, device_class)
        assert each is not None
        return each

    def _left_secs(self, deadline: float) -> float:
        left = deadline - self._now()
        if left < _LEAST_LIMIT_SECS:
            raise StepError("no time of the share is left")
        return left

    def _now(self) -> float:
        return self.steps.moment().unix_secs

    def _save(self) -> None:
        """Save the state. A failure, on a full disk for example, is logged, and the state is written after the next
        step."""
        try:
            save_state(self._path, self.state)
        except UserError as error:
            _LOG.warning("what is known is not written: %s", error.problem)


def _log(event: ServiceEvent) -> None:
    where = f"{event.network} on {event.device_class}: " if event.network and event.device_class else ""
    _LOG.log(logging.WARNING if event.kind in PROBLEMS else logging.INFO, "%s: %s%s", event.kind, where, event.text)


def verdict_of(comparison: VersionComparison) -> Verdict:
    """Return the verdict on the new version. The comparison has at least one pair."""
    verdict = judged([math.log(each.new_secs / each.last_secs) for each in comparison.turns], out_of_time=True)
    assert verdict is not None
    return verdict


def baselines_of(comparison: VersionComparison) -> tuple[Baseline, Baseline]:
    """Return the baselines of the last version and of the new one."""
    return (
        baseline([Timed(each.last_secs, each.probe_secs) for each in comparison.turns]),
        baseline([Timed(each.new_secs, each.probe_secs) for each in comparison.turns]),
    )


def call_hook(
    config: RetuneConfig,
    steps: StepRunner,
    repository: VersionRepository,
    network: str,
    device_class: str,
    before: int | None,
) -> str:
    """Call the hook for the current version. Return the reason why it failed; empty if it did not fail, or if there is
    no hook or no version."""
    current = repository.current(network, device_class)
    if not config.hook or current is None:
        return ""
    about = {
        "FLEET_TUNE_NETWORK": network,
        "FLEET_TUNE_CLASS": device_class,
        "FLEET_TUNE_VERSION": str(current.number),
        "FLEET_TUNE_FOLDER": str(current.folder),
        "FLEET_TUNE_BEFORE": "" if before is None else str(before),
    }
    try:
        return steps.hook(config.hook, about)
    except StepError as error:
        return str(error)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        str(manifest["made_of"])
        return manifest
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"its manifest cannot be read: {error}") from error


def check_networks(config: RetuneConfig, steps: StepRunner) -> list[str]:
    """Try to read the files of each network. Return one line for each network that cannot be read."""
    problems = []
    for network in config.networks:
        try:
            steps.digest(network)
        except (StepError, UserError) as error:
            problems.append(f"{network.name}: {error}")
    return problems
