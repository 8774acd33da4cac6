"""The steps of a run that need TVM: reading the network, importing it for every device class, planning, compiling.

:mod:`fleet_tune.runs.run` loads this module only once the actors are starting: that hides its seconds of import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.session_plan import SessionPlan, snapshot_without_trials
from devices.cuda import compiler
from devices.describing.cache import DescriptionCache
from devices.device_factory import fleet_file_errors
from devices.host.file_cache import user_folder
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.networks.comparison import without_numbers
from devices.networks.frontend import Network, load_network
from devices.networks.lowering import LoweredNetwork, agreement, computes
from devices.networks.network import Array
from devices.networks.processes.lowering_process import LoweringProcess
from devices.targets import NATIVE, resolve_target
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.device_state import Admin, DeviceState, Health
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import DeviceUnreachableError, RecordStoreError, UncheckedError, UnsupportedNetworkError
from fleet_tune.base.records.datasets.dataset_codec import encode_value
from fleet_tune.base.records.datasets.sources import RECORDS_FILE, check_source
from fleet_tune.base.records.sharing.shared import SharedReader
from fleet_tune.base.records.sharing.team import met
from fleet_tune.base.records.stores.classes import classes_in
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import BOUND, NAME, RecordStore, class_unit
from fleet_tune.base.results import NetworkResult, Plan, Progress, SkippedPart, TaskProgress, TuneResult
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import MOST_IMPORTED
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.fleet.device_access import opened
from fleet_tune.runs.fleet.tracker_boards import with_boards
from fleet_tune.runs.methods import method_of
from fleet_tune.runs.preparing.out_folder import held_folder
from fleet_tune.runs.preparing.ready_tasks import ReadyTask, ReadyTasks
from fleet_tune.runs.publishing.compilation import (
    CompileRequest,
    check_records,
    device_classes_of,
    publish_networks,
)
from fleet_tune.runs.publishing.compile_progress import CompileProgress
from fleet_tune.runs.publishing.incumbents import Supply
from fleet_tune.runs.publishing.network_runners import DeviceNetworkRunner, LocalNetworkRunner, NetworkRunner
from fleet_tune.runs.publishing.task_results import task_results
from fleet_tune.runs.publishing.untuned_times import UntunedTimes
from fleet_tune.runs.shared_store.damaged_records import set_aside
from fleet_tune.runs.shared_store.lookup import StoreLookup, look_up
from fleet_tune.runs.shared_store.shipped import shipped
from fleet_tune.runs.shared_store.store_prior import StorePrior, learns_from_store, read_store_prior
from fleet_tune.runs.shared_store.upkeep import versions_now
from fleet_tune.runs.transfer.transfer_prior import TransferPrior, what_applies

if TYPE_CHECKING:
    from actors.run_hosts import RunHosts

_LOG = logging.getLogger(__name__)
# Of a run's time that choosing between records by their time in the network may take after it.
_CHOOSING = 0.1


@dataclass(frozen=True)
class Prepared:
    """A network imported for every device class of the fleet."""

    network: Network
    prints: Mapping[str, Fingerprint]  # by device class name
    lowered: Mapping[str, LoweredNetwork]  # by device class name
    here: frozenset[str]  # classes that this machine belongs to
    tasks: tuple[SearchTask, ...]  # those that are ready and have a sketch
    devices: Mapping[str, tuple[DeviceConfig, ...]]  # by device class name: those that answered and have not left
    left_out: tuple[SkippedPart, ...] = ()
    expected: tuple[Array, ...] | None = None  # outputs of the network's framework, once they were compared

    @property
    def origins(self) -> dict[str, Origin]:
        """What the records of a run depend on, by device class name."""
        return {name: origin_of(fingerprint) for name, fingerprint in self.prints.items()}

    @property
    def undescribed(self) -> tuple[SearchTask, ...]:
        """Every task of the network, ready or not, without its sketches."""
        return tuple(
            SearchTask(task, (), self.prints[name].abstraction)
            for name, of_class in self.lowered.items()
            for task in of_class.tasks
        )

    @property
    def device_ids(self) -> dict[str, list[str]]:
        """The ids of the devices of each class."""
        return {name: [config.name for config in configs] for name, configs in self.devices.items()}

    def with_ready(self, ready: Sequence[ReadyTask]) -> Prepared:
        """The same with tasks that are ready, in the order of the network."""
        places = {entry.task.id: at for at, entry in enumerate(self.undescribed)}
        ready = sorted(ready, key=lambda each: places[each.entry.task.id])
        return dataclasses.replace(
            self,
            tasks=tuple(each.entry for each in ready if each.entry.sketches),
            left_out=(*self.left_out, *(missing for each in ready for missing in each.left_out)),
        )

    def with_classes(self, other: Prepared) -> Prepared:
        """The same network, for the device classes of ``other`` too, of which no task is ready."""
        return dataclasses.replace(
            self,
            prints={**self.prints, **other.prints},
            lowered={**self.lowered, **other.lowered},
            here=self.here | other.here,
            devices={**self.devices, **other.devices},
            left_out=(*self.left_out, *other.left_out),
        )

    def to_build(self, records: Path) -> CompileRequest:
        """What its networks are built from, with the records in this store: each run before it is published, on this
        machine where it belongs to the class, else on a device of it."""
        with RecordReader(records) as reader:
            states = {name: event.state for name, event in reader.device_states().items()}
        places: dict[str, NetworkRunner] = {}
        for name in self.lowered:
            if name in self.here:
                places[name] = LocalNetworkRunner(self.network.example_inputs, self.prints[name].threads)
            elif (device := self.device_of(name, states)) is not None:
                places[name] = DeviceNetworkRunner(device, self.network.example_inputs)
        return CompileRequest(
            self.network, self.lowered, self.prints, self.tasks, places, records, expected=self.expected
        )

    def device_of(self, device_class: str, states: Mapping[str, DeviceState]) -> DeviceConfig | None:
        """The first device of a class that is in use and works, by the last that is known of it; None for no such."""
        for config in self.devices.get(device_class, ()):
            state = states.get(config.name, DeviceState())
            if state.admin is Admin.ACTIVE and state.health is not Health.QUARANTINED:
                return config
        return None


def read_network(spec: Any, inputs: Path | None = None, trusted: bool = False) -> Network:
    """The network of :attr:`RunRequest.network` on :attr:`RunRequest.inputs`. ``trusted``: as
    :attr:`RunRequest.trust_model`."""
    return load_network(spec, inputs, trusted)


def imported(
    network: Network, by_device: Mapping[str, Fingerprint], fleet: FleetConfig, lowering: LoweringProcess
) -> Prepared:
    """Import ``network`` for every device class. None of its tasks is ready. Raises :class:`UnsupportedNetworkError`
    where it has no kernel at all, and as :meth:`LoweringProcess.lowered`."""
    # This process also times the network's framework, whose threads TVM's must not push from their cores.
    os.environ["TVM_BIND_THREADS"] = "0"
    prints = device_classes_of(by_device)
    here = frozenset(
        by_device[device.name].device_class.name
        for device in fleet.devices
        if device.name in by_device  # the others join later
        if (device.connect == "local" and device.via is None) or is_this_machine(by_device[device.name])
    )
    lowered = {name: lowering.lowered(network, fingerprint.device_class) for name, fingerprint in prints.items()}
    if not all(map(computes, lowered.values())):
        raise UnsupportedNetworkError(
            f"{network.name} computes nothing: its outputs are its inputs, or views of them", "give another network"
        )
    left_out = tuple(
        SkippedPart("rewrite", "", name, "", f"without {step}: {reason}")
        for name, of_class in lowered.items()
        for step, reason in of_class.left_out
    )
    devices = {
        name: tuple(
            config
            for config in fleet.devices
            if config.name in by_device and by_device[config.name].device_class.name == name
        )
        for name in prints
    }
    return Prepared(network, prints, lowered, here, (), devices, left_out)


def prepare(
    network: Network, by_device: Mapping[str, Fingerprint], fleet: FleetConfig, lowering: LoweringProcess
) -> Prepared:
    """Import ``network`` for every device class and make the sketches of every task."""
    prepared = imported(network, by_device, fleet, lowering)
    return prepared.with_ready(list(ready_tasks(prepared, fleet)))


def ready_tasks(
    prepared: Prepared,
    fleet: FleetConfig,
    teaching: TransferPrior | None = None,
    window: QuietWindow | None = None,
    found: StoreLookup | None = None,
) -> ReadyTasks:
    """The tasks of an imported network as they become ready, with what they are taught and what was found of them."""

    def begun(entry: SearchTask) -> SearchTask:
        if found is not None and entry.task.id in found.prior.learners:
            entry = found.prior.with_prior(entry)
        elif teaching is not None:
            entry = teaching.with_prior(entry)
        return entry if found is None else found.seeded(entry)

    return ReadyTasks(prepared.undescribed, fleet.datasets, begun if teaching or found else None, window)


def teaching_of(prepared: Prepared, request: RunRequest) -> TransferPrior | None:
    """What the tasks of a run learn before their first trial; None for nothing. Raises UserError where
    ``request.transfer_from`` cannot be used."""
    method, entries = method_of(request.method), prepared.undescribed
    knowledge = what_applies(entries, method, request.transfer_from, pretrained=request.pretrained)
    return None if knowledge is None else TransferPrior(knowledge, method, request.seed, entries)


def origin_of(fingerprint: Fingerprint) -> Origin:
    """What records depend on that are measured now on devices of this fingerprint."""
    is_cuda = fingerprint.abstraction.kind == "cuda"
    known = {
        "driver": fingerprint.driver,
        "microcode": fingerprint.microcode,
        "compiler": compiler.describe() if is_cuda else "",
    }
    machine = {name: version for name, version in known.items() if version}
    target = fingerprint.device_class.target
    return Origin(target, fingerprint.cpu_model, fingerprint.threads, versions_now(), machine)


def found_in(store: Path, prepared: Prepared, request: RunRequest) -> StoreLookup:
    """What a store that several runs share has for a run. Raises :class:`RecordStoreError` where the user has named it;
    another one that cannot be read has nothing."""
    tasks = [entry.task for entry in prepared.undescribed]
    shown = request.store.shown if request.store else ""
    try:
        beside = shipped() if request.pretrained else None
        found = look_up(store, tasks, prepared.origins, request.limits, request.records, beside)
        return dataclasses.replace(found, shown=shown, prior=_lessons(found, prepared, request))
    except RecordStoreError as error:
        if request.store_named:
            raise
        _LOG.warning("nothing is taken from the store: %s", error.problem)
        return StoreLookup(store)


def _lessons(found: StoreLookup, prepared: Prepared, request: RunRequest) -> StorePrior:
    """What the cost models of a run learn from the store: nothing where the user has named what they learn from."""
    if request.collects or request.transfer_from is not None or not learns_from_store(method_of(request.method)):
        return StorePrior()
    devices = {name: fingerprint.abstraction for name, fingerprint in prepared.prints.items()}
    return read_store_prior(found.path, found.similar, devices, DescriptionCache(user_folder()), request.seed)


def with_imported(prepared: Prepared, found: StoreLookup) -> Prepared:
    """The same whose tasks have the sketches that no rule makes, of what was found."""
    lowered = {
        name: dataclasses.replace(
            of_class,
            tasks=tuple(
                dataclasses.replace(task, imported=found.imported.get(task.id, ())[:MOST_IMPORTED])
                for task in of_class.tasks
            ),
        )
        for name, of_class in prepared.lowered.items()
    }
    return dataclasses.replace(prepared, lowered=lowered)


def needs_no_trial(prepared: Prepared, request: RunRequest, found: StoreLookup | None) -> bool:
    """Whether a run only compiles: the store that several runs share settles all of its tasks."""
    if found is None or request.collects or request.fleet.datasets:
        return False
    tasks = [entry.task.id for entry in prepared.undescribed]
    return bool(tasks) and found.settled.issuperset(tasks)


def without_trials(
    prepared: Prepared,
    lowering: LoweringProcess,
    hosts: RunHosts,
    plan: SessionPlan,
    records: Path,
) -> tuple[Prepared, Progress]:
    """What a run goes on with that only compiles, and its last snapshot before it does. Its tasks are not described:
    that is done when one has to be searched after all. What this machine runs is compared with its framework before it
    is published, a moment from now, and by its kernels too where it is wrong; what others run is compared here."""
    prepared = check(prepared, lowering, prepared.here)
    with RecordStore(records) as store:
        for entry in plan.tasks:
            store.put_task(entry.task)
    with RecordReader(records) as reader:
        states = {name: event.state for name, event in reader.device_states().items()}
        last = snapshot_without_trials(plan, hosts, list(reader), states)
    return dataclasses.replace(prepared, tasks=prepared.undescribed), last


def is_this_machine(fingerprint: Fingerprint) -> bool:
    """Whether a device that is reached over a port runs what this machine runs: the same target and processor."""
    return fingerprint.device_class.target == resolve_target(NATIVE, fingerprint.threads)


def check(prepared: Prepared, lowering: LoweringProcess, but: Collection[str] = ()) -> Prepared:
    """Compare the lowered networks with the network's framework, ``but`` those of these classes, and end ``lowering``.
    Where this machine cannot run one, that is left out: the tuned network is compared before it is published; so is an
    output of which no number is finite. Raises NetworkError where they disagree, or the network crashes."""
    unchecked: list[SkippedPart] = []
    compared = {name: lowered for name, lowered in prepared.lowered.items() if name not in but}
    expected = prepared.expected
    if compared and expected is None:
        expected = prepared.network.framework_outputs()
    for name, lowered in compared.items():
        assert expected is not None
        try:
            agreement(lowered, lowering.outputs(lowered, prepared.network.example_inputs), expected)
        except UncheckedError as error:
            unchecked.append(SkippedPart("check", "", name, "", str(error)))
    for at in without_numbers(expected or ()):
        where = f"in output {at} on these inputs ({prepared.network.inputs_from})"
        reason = f"it gives no finite number {where}: give others with --inputs"
        unchecked += [SkippedPart("check", "", name, "", reason) for name in prepared.lowered]
    lowering.close()
    return dataclasses.replace(prepared, left_out=(*unchecked, *prepared.left_out), expected=expected)


def without_damaged(prepared: Prepared, records: Path) -> Prepared:
    """The same, saying what of a store cannot be read."""
    damaged = set_aside(records)
    return (
        dataclasses.replace(prepared, left_out=(SkippedPart("record", "", "", "", damaged), *prepared.left_out))
        if damaged
        else prepared
    )


def probe_fleet(fleet: FleetConfig) -> dict[str, Fingerprint]:
    """The fingerprints of the devices that answer, asked without a cluster. Raises FleetFileError where none does, or
    something is wrong with one."""
    prints: dict[str, Fingerprint] = {}
    absent: dict[str, DeviceUnreachableError] = {}
    for config in fleet.devices:
        name = config.name
        try:
            with fleet_file_errors(fleet, name, unreachable=False), opened(config) as device:
                prints[name] = device.fingerprint()
        except DeviceUnreachableError as error:
            absent[name] = error
    if not prints:
        name = next(iter(absent))
        with fleet_file_errors(fleet, name):
            raise absent[name]
    return prints


def plan(request: RunRequest) -> Plan:
    """The plan of a run: tasks, weights and sketches for every device class, and what the search would start from.
    Raises UserError."""
    method_of(request.method)
    if request.transfer_from is not None:
        check_source(request.transfer_from)
    if request.store is not None:
        met(request.store)
    fleet = with_boards(request.fleet)
    by_device = probe_fleet(fleet)
    with contextlib.closing(LoweringProcess()) as lowering:
        network = read_network(request.network, request.inputs, request.trust_model)
        prepared = prepare(network, by_device, fleet, lowering)
    teaching = teaching_of(prepared, request)
    found = None if request.store is None else found_in(request.store.path, prepared, request)
    others = prepared.tasks if found is None else found.without_prior(prepared.tasks)
    tasks = tuple(
        TaskProgress(
            task_id=entry.task.id,
            name=entry.task.workload.name,
            device_class=entry.task.device_class.name,
            weight=entry.task.weight,
            flop=entry.task.workload.flop,
            sketches=len(entry.sketches),
            trials=0,
            best_secs=math.inf,
        )
        for entry in prepared.tasks
    )
    return Plan(
        network=prepared.network.name,
        method=method_of(request.method).name,
        devices={
            config.name: by_device[config.name].device_class.name if config.name in by_device else "it does not answer"
            for config in fleet.devices
        },
        tasks=tasks,
        trial_limit=request.limits.trials,
        time_budget_secs=request.limits.time_budget_secs,
        transferred=None if teaching is None or not others else teaching.summary(others),
        left_out=prepared.left_out,
        inputs=prepared.network.inputs_from,
        store=None if found is None else found.summary,
    )


def compile_from_records(
    spec: Any, fleet: FleetConfig, records: Path, out: Path, inputs: Path | None = None, trusted: bool = False
) -> TuneResult:
    """Compile the network that ``spec`` names (:attr:`RunRequest.network`) from the records of any store, without
    tuning. ``out``: absolute. ``inputs``, ``trusted``: as :attr:`RunRequest.inputs` and ``trust_model``."""
    started = time.monotonic()
    try:
        RecordReader(records).close()
    except RecordStoreError as error:
        raise type(error)(error.problem, "give the path of a records.db with --records") from error
    with held_folder(out):
        return _compiled_from_records(started, spec, fleet, records, out, inputs, trusted)


def _compiled_from_records(
    started: float, spec: Any, fleet: FleetConfig, records: Path, out: Path, inputs: Path | None, trusted: bool
) -> TuneResult:
    with RecordReader(records) as reader:
        outcomes = {outcome.value: count for outcome, count in reader.counts().items()}
    with contextlib.closing(LoweringProcess()) as lowering:
        prepared = check(prepare(read_network(spec, inputs, trusted), probe_fleet(fleet), fleet, lowering), lowering)
    prepared = without_damaged(prepared, records)
    if (out / RECORDS_FILE).exists():
        bind_store(out / RECORDS_FILE, prepared)  # the folder of another network or target is refused
    check_records(prepared.lowered, prepared.tasks, records)
    what = dataclasses.replace(prepared.to_build(records), teller=CompileProgress(time.monotonic() - started))
    networks = publish_networks(what, out, Cancellation())
    return TuneResult(
        network=prepared.network.name,
        out=out,
        tasks=task_results((entry.task for entry in prepared.tasks), what.rules, records),
        outcomes=outcomes,
        new_trials=0,
        elapsed_secs=time.monotonic() - started,
        interrupted=False,
        networks=networks,
        left_out=prepared.left_out,
        inputs=prepared.network.inputs_from,
        notices=what.teller.notices,
    )


def compiled_on(prepared: Prepared, records: Path) -> list[str]:
    """The ids of the devices that :func:`compile_tuned` measures on."""
    with RecordReader(records) as reader:
        states = {name: event.state for name, event in reader.device_states().items()}
    devices = (prepared.device_of(name, states) for name in prepared.lowered)
    return [device.name for device in devices if device is not None]


def compile_tuned(
    prepared: Prepared, request: RunRequest, run_id: str, teller: CompileProgress, cancellation: Cancellation
) -> tuple[NetworkResult, ...]:
    """The compiled networks of a finished run, from its own records; tasks without one get the analyzer's first choices
    measured now. ``run_id``: whose records these are. ``teller``: is told what is done. ``cancellation``: see
    :func:`publish_networks`."""
    from fleet_tune.runs.preparing.first_choices import (
        FirstChoices,  # here: it needs the actors' modules, which only a run has
    )

    what = dataclasses.replace(prepared.to_build(request.records), run_id=run_id)
    entries = {entry.task.id: entry for entry in prepared.tasks}
    with RecordReader(request.records) as reader:
        states = {name: event.state for name, event in reader.device_states().items()}
        classes = len(classes_in(reader.meta()))
    artifacts = request.out / "artifacts"
    supplies: dict[str, Supply] = {}
    for name in prepared.lowered:
        device = prepared.device_of(name, states)
        if device is not None:
            measuring = request.fleet.measure
            supplies[name] = FirstChoices(
                entries, device, request.records, artifacts, request.seed, measuring, teller=teller, run_id=run_id
            )
    spare_secs = _CHOOSING * teller.elapsed_secs
    # A class keeps its folder whoever of the others takes part.
    what = dataclasses.replace(
        what,
        supplies=supplies,
        teller=teller,
        spare_secs=spare_secs,
        classes=classes,
        untuned_times=UntunedTimes(user_folder()),
    )
    return publish_networks(what, request.out, cancellation)


def with_what_was_found(last: Progress, prepared: Prepared, records: Path) -> Progress:
    """The last snapshot of a run, with what the building of its networks has stored since: records for tasks that had
    none, and what was found wrong."""
    rules = {sketch.id: sketch.rule for entry in prepared.tasks for sketch in entry.sketches}
    now = {each.task_id: each for each in task_results((entry.task for entry in prepared.tasks), rules, records)}
    with RecordReader(records) as reader:
        outcomes = {outcome.value: count for outcome, count in reader.counts().items()}
    trials = sum(outcomes.values())
    tasks = tuple(
        dataclasses.replace(
            each,
            trials=now[each.task_id].trials,
            best_secs=now[each.task_id].best_secs,
            best_rule=now[each.task_id].best_rule,
        )
        for each in last.tasks
    )
    new_trials = last.new_trials + trials - sum(last.outcomes.values())
    return dataclasses.replace(last, tasks=tasks, outcomes=outcomes, trials=trials, new_trials=new_trials)


def bind_store(
    path: Path, prepared: Prepared, run_id: str = "", origins: Mapping[str, Origin] | None = None
) -> dict[str, str]:
    """Tie the record store to this network, and have it know these device classes; :class:`OutputFolderError` where it
    belongs to another network, or a class had another target.
    ``origins``: what the records of the run ``run_id``, which begins, depend on; none of what others have recorded."""
    meta = {
        BOUND: prepared.network.fingerprint,
        NAME: prepared.network.name,
    }
    with RecordStore(path) as store:
        store.bind(meta)
        with SharedReader(path) as reader:
            # What was merged into the folder before its devices were known is counted at the units of their classes.
            for name, configs in prepared.devices.items():
                secs = reader.unit_of(class_unit(name))
                if secs is not None:
                    for config in configs:
                        store.unit(config.name, secs)
        store.put_classes([encode_value(each) for each in prepared.prints.values()])
        if origins:
            store.put_run(run_id, origins)
    return meta
