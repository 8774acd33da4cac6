"""From the best records of a store to compiled, checked and measured networks.

Nothing wrong is published: a network is compiled beside the folder that users load from, run on its device, compared
with its framework, and only then moved there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from devices.error_text import brief
from devices.host.warm_process import ChildStartError
from devices.networks import network_folder
from devices.networks.frontend import Network
from devices.networks.lowering import LoweredNetwork, compare, tolerance
from devices.networks.network import Array
from devices.networks.processes.compile_process import CompileProcess
from devices.timing.in_network import InNetworkTimes
from fleet_tune.base.domain import Fingerprint, Measurement, Outcome, Record
from fleet_tune.base.errors import (
    DiskFullError,
    FleetFileError,
    FleetTuneError,
    NetworkRunError,
    RecordStoreError,
    UncheckedError,
    UserError,
)
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import ChosenInPlace, Fallback, NetworkResult, Used, is_busy
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.publishing import manifest, versions_in_place
from fleet_tune.runs.publishing.admission import AdmittedRecords, UnscheduledWrongError, admit
from fleet_tune.runs.publishing.compile_progress import CompileProgress
from fleet_tune.runs.publishing.in_network import in_network
from fleet_tune.runs.publishing.incumbents import Incumbents, Supply
from fleet_tune.runs.publishing.network_runners import THIS_MACHINE, NetworkRunner, NetworkRunResult
from fleet_tune.runs.publishing.task_results import reason_of, usual_secs
from fleet_tune.runs.publishing.untuned_times import CLEARLY, UntunedTimes
from fleet_tune.runs.publishing.versions_in_place import Ranked
from policies.measuring.in_network import is_worth_it

# Times that differ by less are the same.
_SAME = 1.02
_FRAMEWORK_REPEATS = 50
# Of compiling a network: how much longer than the builds of its records it may take, and what those that are not known
# are taken for.
_LONGER = 10.0
_UNKNOWN_BUILD_SECS = 10.0
_LEAST_COMPILE_SECS = 120.0
_LOG = logging.getLogger(__name__)


class NetworkCompiler(Protocol):
    """What compiles networks: :class:`~devices.networks.processes.compile_process.CompileProcess`, or in this process
    :mod:`devices.networks.network_folder`."""

    def compile_network(
        self,
        lowered: LoweredNetwork,
        best: Mapping[str, str | None],
        out: Path,
        manifest_extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """See :func:`devices.networks.network_folder.compile_network`."""


def device_classes_of(by_device: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
    """One fingerprint for each device class, by its name: the first device's stands for its class.

    Raises :class:`FleetFileError` where devices of one class have different targets.
    """
    classes: dict[str, Fingerprint] = {}
    for device, fingerprint in by_device.items():
        first = classes.setdefault(fingerprint.device_class.name, fingerprint)
        if first.device_class.target != fingerprint.device_class.target:
            raise FleetFileError(
                f"device {device!r} has another target than the others of its class {first.device_class.name!r}",
                "give it a device_class of its own in the fleet file",
            )
    return classes


def folder_of(out: Path, device_class: str, classes: int) -> Path:
    """Where the network of a class goes: ``out`` itself for the only class, else a folder of its own."""
    return out if classes == 1 else out / device_class


@dataclass(frozen=True)
class CompileRequest:
    """What the networks of all classes are built from, by device class name where it is a mapping.

    ``entries``: the tasks that have sketches. ``places``: where a class' network is run before it is published; a class
    without one is not checked. ``supplies``: what finds records for tasks without one. ``teller``: is told what is
    done, and what a network goes without. ``spare_secs``: what it may take to choose between records that are nearly as
    good, by their time in the network; it is left where it would take longer. ``run_id``: whose records these are,
    empty where no run is compiled: what is withdrawn then is of the run that had measured it. ``classes``: of the
    output folder, where that knows of more than are built now. ``untuned_times``: of earlier runs.
    ``expected``: what the network's framework gives, where that is known.
    """

    network: Network
    lowered: Mapping[str, LoweredNetwork]
    prints: Mapping[str, Fingerprint]
    entries: Sequence[SearchTask]
    places: Mapping[str, NetworkRunner]
    records: Path
    supplies: Mapping[str, Supply] = field(default_factory=dict)
    teller: CompileProgress = field(default_factory=CompileProgress)
    spare_secs: float = math.inf
    run_id: str = ""
    classes: int = 0
    untuned_times: UntunedTimes = field(default_factory=UntunedTimes)
    expected: tuple[Array, ...] | None = None

    @property
    def rules(self) -> dict[str, str]:
        """The sketch rule of each sketch id."""
        return {sketch.id: sketch.rule for entry in self.entries for sketch in entry.sketches}


def check_records(lowered: Mapping[str, LoweredNetwork], entries: Sequence[SearchTask], records: Path) -> None:
    """Raises :class:`RecordStoreError` where a network that can be tuned has no verified record in the store at all."""
    with RecordReader(records) as reader:
        if not entries or any(reader.best(task.id) for each in lowered.values() for task in each.tasks):
            return
    raise RecordStoreError(
        f"{records} has no verified record of this network for {' or '.join(lowered)}",
        "tune it first, or name the database of a run of the same network and target",
    )


def publish_networks(
    what: CompileRequest, out: Path, cancellation: Cancellation, compiler: NetworkCompiler | None = None
) -> tuple[NetworkResult, ...]:
    """Compile the network of every device class from its best records, check it where it runs, measure it beside the
    untuned one, and publish it in ``out`` if it is right; each class by itself.

    A task without a record stays as it was imported. Where the network is slower than the untuned one, that is
    published. What goes wrong with one class is told in its result and takes nothing from the others, except for
    what the user can mend; where no class got a network, the first error is raised. ``cancellation``: after it nothing
    is published, and some error is raised."""
    if compiler is None:
        limit_secs = compile_limit_secs(what.lowered.values(), what.records)
        with contextlib.closing(CompileProcess(limit_secs)) as process:
            cancellation.own(process)
            return publish_networks(what, out, cancellation, process)
    expected = what.expected
    if expected is None:
        what.teller.tell("running the network in its framework")
        expected = what.network.framework_outputs()
    results = []
    errors: list[Exception] = []
    for name, lowered in what.lowered.items():
        folder = folder_of(out, name, max(what.classes, len(what.lowered)))
        place = what.places.get(name)
        try:
            results.append(_ClassBuild(what, lowered, folder, compiler, expected, place, cancellation).built())
        except UserError:
            raise
        except Exception as error:
            if cancellation.came:
                raise
            _LOG.warning("the network of %s is not published", name, exc_info=error)
            errors.append(error)
            nothing = NetworkResult(name, folder, None, None, None, None, None)
            results.append(dataclasses.replace(nothing, published="nothing", problem=brief(error)))
        finally:
            if place is not None:
                place.close()
    if errors and all(each.published == "nothing" for each in results):
        raise errors[0]
    return tuple(results)


def compile_limit_secs(lowered: Iterable[LoweredNetwork], records: Path) -> float:
    """Seconds in which each of these networks is compiled unless the compiler hangs: ten times what the builds of its
    tasks' best records took together, two minutes at least."""
    with RecordReader(records) as reader:
        sums = [sum(_build_secs(reader.best(task.id)) for task in each.tasks) for each in lowered]
    return max(_LEAST_COMPILE_SECS, _LONGER * max(sums, default=0.0))


def _build_secs(record: Record | None) -> float:
    return (0.0 if record is None else record.measurement.build_secs) or _UNKNOWN_BUILD_SECS


class _LostMeanwhileError(Exception):
    """The network is wrong, and where it was run is gone: the kernel at fault cannot be found."""


@dataclass
class _ClassBuild:
    """The building of one class' network. ``stage``: the folder in which it is compiled, while :meth:`built` runs."""

    what: CompileRequest
    lowered: LoweredNetwork
    folder: Path
    compiler: NetworkCompiler
    expected: tuple[Array, ...]
    place: NetworkRunner | None
    cancellation: Cancellation
    unchecked: str = "none of its devices can run it"
    stage: Path = Path()
    errors: tuple[float, float] | None = None  # absolute and relative, of the last network that was right
    compile_secs: float = 0.0
    chosen: tuple[ChosenInPlace, ...] = ()
    suspects: Mapping[str, Record] | None = None  # of the first network that was wrong, until it is right
    untuned_secs: float | None = None  # of an earlier run
    tried: tuple[Path, Mapping[str, Record], NetworkRunResult] | None = None  # the last network that was, in its folder

    @property
    def name(self) -> str:
        return self.lowered.device_class.name

    def built(self) -> NetworkResult:
        supply = self.what.supplies.get(self.name)
        incumbents = Incumbents(
            self.what.records, supply, self.what.teller.warn, self.what.run_id, self.lowered.fingerprint
        )
        result = NetworkResult(self.name, self.folder, None, None, None, None, None)
        if self.place is not None:
            times, fingerprint = self.what.untuned_times, self.what.prints[self.name]
            self.untuned_secs = times.find(self.lowered, fingerprint, self.place.name)
            if self.untuned_secs is not None:
                self.place.expect()
        with network_folder.staging(self.folder) as self.stage:
            try:
                admitted = admit([task.id for task in self.lowered.tasks], incumbents, self.judge)
            except UnscheduledWrongError as error:
                problem = f"it is wrong also as it was imported, without any schedule: {error}"
                return dataclasses.replace(result, published="nothing", problem=problem)
            except _LostMeanwhileError as error:
                problem = f"it is wrong, and which kernel is at fault could not be found: {error}"
                return dataclasses.replace(result, published="nothing", problem=problem)
            fallbacks = self._fallbacks(admitted, incumbents)
            self._tell("compiling the network")
            self.compiler.compile_network(self.lowered, traces(admitted.records), self.stage, self._extra(admitted))
            admitted = self._chosen_in_place(admitted, incumbents)
            absolute, relative = self.errors or (None, None)
            result = dataclasses.replace(
                result,
                max_abs_error=absolute,
                max_rel_error=relative,
                checked_on="" if self.place is None else self.place.name,
                unchecked=self.unchecked if self.place is None else "",
                fallbacks=fallbacks,
                chosen_in_place=self.chosen,
            )
            return self._published(self._with_kernels(self._measured(result, admitted), admitted))

    def _chosen_in_place(self, admitted: AdmittedRecords, incumbents: Incumbents) -> AdmittedRecords:
        """With the records that are faster in the network than those of the lowest cost alone, where the network is
        right with them and faster as a whole; :attr:`stage` is that network then. What goes wrong changes nothing.
        Between records that have met in the network before nothing is decided again."""
        self.chosen = tuple(filter(None, map(incumbents.chosen, admitted.records.values())))
        decided = {each.task_id: each.compared for each in self.chosen}
        near = {
            task_id: records
            for task_id, records in versions_in_place.ranked(admitted.records, incumbents.next_best).items()
            if any(each.candidate.id not in decided.get(task_id, ()) for each in records)
        }
        networks = versions_in_place.networks_of(admitted.records, near)
        if self.place is None or not networks:
            return admitted
        while networks and versions_in_place.expected_secs(len(networks), self.compile_secs) > self.what.spare_secs:
            networks.pop()
        if not networks:
            _LOG.info("no time to choose between kernels of %d tasks by their time in the network", len(near))
            return admitted
        self._tell(f"choosing between kernels of {len(near)} tasks by their time in the network")
        deadline = time.monotonic() + 2 * self.what.spare_secs
        folders = {0: self.stage}
        try:
            for number, records in enumerate(networks, 1):
                with self._only_warned("a version of its kernels is not tried"):
                    folder = self.stage.with_name(f"version-{number}")
                    folders[number] = self.compiler.compile_network(self.lowered, traces(records), folder)
            with self._only_warned("its kernels are not chosen by their time in it"):
                return self._with_chosen(admitted, incumbents, near, folders, self.place, deadline)
        finally:
            for number in set(folders) - {0}:
                shutil.rmtree(folders[number], ignore_errors=True)
        return admitted

    def _with_chosen(
        self,
        admitted: AdmittedRecords,
        incumbents: Incumbents,
        near: Ranked,
        folders: Mapping[int, Path],
        place: NetworkRunner,
        deadline: float,
    ) -> AdmittedRecords:
        """See :meth:`_chosen_in_place`. ``folders``: of the networks by the number of the version."""
        if len(folders) == 1:
            return admitted
        changed = versions_in_place.fastest(near, self.lowered, folders, place, deadline)
        if not changed:
            return admitted
        records = {**admitted.records, **{task_id: record for task_id, (record, _) in changed.items()}}
        chosen = dataclasses.replace(admitted, records=records)
        folder = self.stage.with_name("chosen")
        self.compiler.compile_network(self.lowered, traces(records), folder, self._extra(chosen))
        absolute, relative = compare(place.outputs(folder), self.expected)
        if not relative <= tolerance(self.lowered):
            raise UncheckedError(f"with those it is wrong: relative error {relative:.2g}")
        before_secs, secs = place.measure_in_turn(self.stage, folder)
        if not is_worth_it(secs, before_secs):
            return admitted
        self.stage, self.errors = folder, (absolute, relative)
        choices = [why for _, why in changed.values()]
        self.chosen = (*(each for each in self.chosen if each.task_id not in changed), *choices)
        if not is_busy(place.others_cores):  # what is kept is not asked again
            incumbents.choose(choices)
        return chosen

    @contextlib.contextmanager
    def _only_warned(self, what: str) -> Iterator[None]:
        """Whatever goes wrong is a warning, ``what`` with its reason: the network is right without it."""
        try:
            yield
        except Exception as error:  # a version that crashes, no space for it: nobody is to blame for what is not used
            self._warn(f"is as it was, {what}: {brief(error)}")

    def judge(self, records: Mapping[str, Record]) -> Measurement | None:
        """See :data:`fleet_tune.runs.publishing.admission.Judge`: compiles the network into the stage and runs it."""
        self._tell(f"compiling the network with {len(records)} tuned of {len(self.lowered.tasks)} tasks")
        began = time.monotonic()
        try:
            self.compiler.compile_network(self.lowered, traces(records), self.stage)
        except (DiskFullError, ChildStartError):
            raise
        except Exception as error:  # whatever TVM raises, or a trace that does not fit
            if isinstance(error, UserError) and not isinstance(error, RecordStoreError):
                raise  # no linker, no CUDA compiler, no memory: a matter of this machine, not of a record
            return Measurement(Outcome.BUILD_ERROR, detail=brief(error))
        self.compile_secs = max(self.compile_secs, time.monotonic() - began)
        fault = self._fault_of(self.stage, records)
        if fault is None and records == self.suspects:
            self.suspects = None  # it was wrong once, of another cause
        elif fault is not None and self.suspects is None:
            self.suspects = dict(records)
            why = f"{fault.outcome.value.replace('_', ' ')}: {fault.detail}"
            self._warn(f"is not right ({why}): judging it again")
        return fault

    def _fault_of(self, folder: Path, records: Mapping[str, Record]) -> Measurement | None:
        if self.place is None:
            return None
        self._tell("comparing the network with its framework")
        try:
            outputs = self._outputs(self.place, folder, records)
        except NetworkRunError as error:
            return Measurement(Outcome.RUN_ERROR, detail=str(error))
        except UncheckedError as error:
            if self.suspects is not None:
                raise _LostMeanwhileError(str(error)) from error
            self._cannot_check(error)
            return None
        absolute, relative = compare(outputs, self.expected)
        if not relative <= tolerance(self.lowered):
            return Measurement(Outcome.WRONG_OUTPUT, detail=f"relative error {relative:.2g}")
        self.errors = absolute, relative
        return None

    def _outputs(self, place: NetworkRunner, folder: Path, records: Mapping[str, Record]) -> tuple[Array, ...]:
        """Of the network in ``folder``, timed too where nothing else has to be timed beside it."""
        if self.untuned_secs is None or not records:
            return place.outputs(folder)
        self.tried = folder, dict(records), place.tried(folder)
        return self.tried[2].outputs

    def _cannot_check(self, error: Exception) -> None:
        self._warn(f"is not checked: {error}")
        self.unchecked, self.place, self.errors = str(error), None, None

    def _measured(self, result: NetworkResult, admitted: AdmittedRecords) -> NetworkResult:
        """The result with the times, and what is to be published by them."""
        if self.place is None:
            return result
        clear = self._clearly_faster(result, admitted)
        if clear is not None:
            return clear
        untuned = self._untuned(admitted)
        try:
            result = self._timed(result, admitted, untuned)
        except NetworkRunError as error:  # twice: beside the untuned one, and alone
            return self._instead_of(result, untuned, str(error))
        except UncheckedError as error:  # it takes too long, say
            self._warn(f"is not timed: {error}")
            return result
        if result.tuned_secs is None or result.untuned_secs is None or untuned is None:
            return result
        if result.tuned_secs > _SAME * result.untuned_secs:
            errors = self._errors_of(untuned)
            if errors is not None:
                self.stage = untuned
                return dataclasses.replace(
                    result, published="untuned", max_abs_error=errors[0], max_rel_error=errors[1]
                )
        return result

    def _clearly_faster(self, result: NetworkResult, admitted: AdmittedRecords) -> NetworkResult | None:
        """The result where an earlier run has timed the untuned network, and the tuned one takes far less; None where
        both have to be timed."""
        times = self._last_times(admitted)
        if times is None or self.untuned_secs is None or times[0] * CLEARLY > self.untuned_secs:
            return None
        timed = dataclasses.replace(
            result,
            tuned_secs=times[0],
            untuned_secs=self.untuned_secs,
            untuned_earlier=True,
            others_cores=self.tried[2].others_cores if self.tried else None,
        )
        return self._beside_framework(timed)

    def _last_times(self, admitted: AdmittedRecords) -> tuple[float, InNetworkTimes] | None:
        """Of what is to be published, where it was tried last."""
        if self.tried is None or self.tried[:2] != (self.stage, admitted.records):
            return None
        return self.tried[2].times

    def _with_kernels(self, result: NetworkResult, admitted: AdmittedRecords) -> NetworkResult:
        """The result with the time of each kernel of what is to be published, where it can be had."""
        if self.place is None or result.secs is None:
            return result
        times = self._last_times(admitted)
        try:
            if times is None:
                self._tell("timing the kernels in the network")
            timed = self.place.in_place(self.stage) if times is None else times[1]
        except Exception as error:
            self._warn(f"has kernels that are not timed in it: {brief(error)}")
            return result
        records = admitted.records if result.published == "tuned" else {}
        with RecordReader(self.what.records) as reader:
            alone = {task_id: usual_secs(reader, record) for task_id, record in records.items()}
        return dataclasses.replace(result, in_network=in_network(timed, self.lowered, alone))

    def _untuned(self, admitted: AdmittedRecords) -> Path | None:
        """The folder of the untuned network; None where the network has no schedule, or it cannot be compiled."""
        if not admitted.records:
            return None
        folder = self.stage.with_name("untuned")
        self._tell("compiling the untuned network, to compare")
        try:
            return self.compiler.compile_network(self.lowered, {}, folder, {**self._extra(admitted), "tasks": {}})
        except Exception as error:  # whatever TVM raises, or no space: what is to be published is not touched by it
            self._not_compared(error)
            return None

    def _timed(self, result: NetworkResult, admitted: AdmittedRecords, untuned: Path | None) -> NetworkResult:
        """The result with what can be timed. Raises NetworkRunError, UncheckedError of the network alone."""
        assert self.place is not None
        untuned_secs: float | None = None
        self._tell("timing the network")
        try:
            if untuned is None:
                tuned_secs = self.place.measure_secs(self.stage)
                untuned_secs = None if admitted.records else tuned_secs
            else:
                tuned_secs, untuned_secs = self.place.measure_in_turn(self.stage, untuned)
        except Exception as error:  # of either: the untuned one took too long, say
            self._not_compared(error)
            tuned_secs = self.place.measure_secs(self.stage)
            return dataclasses.replace(result, tuned_secs=tuned_secs, others_cores=self.place.others_cores)
        others = self.place.others_cores
        timed = dataclasses.replace(result, tuned_secs=tuned_secs, untuned_secs=untuned_secs, others_cores=others)
        if untuned_secs is not None and not timed.on_busy_host:
            times, fingerprint = self.what.untuned_times, self.what.prints[self.name]
            times.keep(self.lowered, fingerprint, self.place.name, untuned_secs)
        return self._beside_framework(timed)

    def _beside_framework(self, result: NetworkResult) -> NetworkResult:
        """The result with the framework's time, where the network runs on this machine and is compared at all."""
        if self.place is None or self.place.name != THIS_MACHINE or result.untuned_secs is None:
            return result
        threads = self.what.prints[self.name].threads
        self._tell("timing the network in its framework")
        try:
            torch_secs = self.what.network.measure_framework_secs(threads, _FRAMEWORK_REPEATS)
        except Exception as error:
            self._warn(f"is not compared with its framework's time: {error}")
            return result
        return dataclasses.replace(result, torch_secs=torch_secs)

    def _instead_of(self, result: NetworkResult, untuned: Path | None, why: str) -> NetworkResult:
        """The result where the tuned network, which was right, crashes when it is timed: the untuned one if that is
        right."""
        assert self.place is not None
        problem = f"the tuned network fails when it is timed: {why}"
        errors = self._errors_of(untuned) if untuned is not None else None
        if untuned is None or errors is None:
            return dataclasses.replace(
                result, published="nothing", problem=problem, max_abs_error=None, max_rel_error=None
            )
        self.stage = untuned
        untuned_secs: float | None = None
        with contextlib.suppress(FleetTuneError):
            untuned_secs = self.place.measure_secs(untuned)
        absolute, relative = errors
        return dataclasses.replace(
            result,
            published="untuned",
            problem=problem,
            untuned_secs=untuned_secs,
            others_cores=None if untuned_secs is None else self.place.others_cores,
            max_abs_error=absolute,
            max_rel_error=relative,
        )

    def _errors_of(self, untuned: Path) -> tuple[float, float] | None:
        """Absolute and relative, of the untuned network where it is right; else None, and it is not published."""
        assert self.place is not None
        try:
            absolute, relative = compare(self.place.outputs(untuned), self.expected)
        except Exception as error:
            self._warn(f"cannot be published untuned: {error}")
            return None
        if not relative <= tolerance(self.lowered):
            self._warn(f"cannot be published untuned: relative error {relative:.2g}")
            return None
        return absolute, relative

    def _not_compared(self, error: Exception) -> None:
        self._warn(f"is not compared with the untuned one: {brief(error)}")

    def _tell(self, doing: str) -> None:
        self.what.teller.tell(f"{doing} ({self.name})" if len(self.what.lowered) > 1 else doing)

    def _warn(self, what: str) -> None:
        self.what.teller.warn(f"the network of {self.name} {what}")

    def _published(self, result: NetworkResult) -> NetworkResult:
        """Complete the manifest, and move the network to where users load it, unless nothing is to be published."""
        if result.published != "tuned":
            result = dataclasses.replace(result, chosen_in_place=())
        if result.published == "nothing":
            return result
        network_folder.update_manifest(self.stage, manifest.found(result))
        with self.cancellation.publishing():
            network_folder.publish(self.stage, self.folder)
        return result

    def _extra(self, admitted: AdmittedRecords) -> dict[str, Any]:
        """What the manifest says beside what the network is made of."""
        fingerprint = self.what.prints[self.name]
        return manifest.made_of(self.lowered.tasks, admitted.records, self.what.rules, fingerprint, self.what.records)

    def _fallbacks(self, admitted: AdmittedRecords, incumbents: Incumbents) -> tuple[Fallback, ...]:
        tunable = {entry.task.id for entry in self.what.entries}
        fallbacks = []
        for task in self.lowered.tasks:
            faults, record = admitted.faults.get(task.id, []), admitted.records.get(task.id)
            was_supplied = task.id in incumbents.supplied
            if task.id not in tunable or not (faults or was_supplied or record is None):
                continue
            reason = reason_of(faults) if faults else "no verified record"
            used = Used.FIRST_CHOICE if was_supplied else Used.RECORD
            if record is None:
                used = Used.UNSCHEDULED
            fallbacks.append(Fallback(task.workload.name, reason, used))
        return tuple(fallbacks)


def traces(records: Mapping[str, Record]) -> dict[str, str | None]:
    """The trace of each record, by task id."""
    return {task_id: record.trace for task_id, record in records.items()}
