"""The network of one device class, from its records to its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from devices.error_text import brief
from devices.host.warm_process import ChildStartError
from devices.networks import network_folder
from devices.networks.lowering import LoweredNetwork, compare, tolerance
from devices.networks.network import Array
from devices.timing.in_network import InNetworkTimes
from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.errors import (
    DiskFullError,
    FleetTuneError,
    NetworkRunError,
    RecordStoreError,
    UncheckedError,
    UserError,
)
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import ChosenInPlace, Fallback, FallbackKernel, NetworkResult, is_busy
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.publishing import manifest, versions_in_place
from fleet_tune.runs.publishing.admission import AdmittedRecords, UnscheduledWrongError, admit
from fleet_tune.runs.publishing.compile_request import CompileRequest
from fleet_tune.runs.publishing.in_network import in_network
from fleet_tune.runs.publishing.incumbents import Incumbents
from fleet_tune.runs.publishing.network_runners import THIS_MACHINE, NetworkRunner, NetworkRunResult
from fleet_tune.runs.publishing.task_results import reason_of, usual_secs
from fleet_tune.runs.publishing.untuned_times import CLEARLY
from fleet_tune.runs.publishing.versions_in_place import Ranked
from policies.measuring.in_network import is_worth_it

# Times that differ by less are the same.
_SAME = 1.02
_FRAMEWORK_REPEATS = 50
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


class _LostMeanwhileError(Exception):
    """The network is wrong, and where it was run is gone: the kernel at fault cannot be found."""


@dataclass(frozen=True)
class TriedNetwork:
    """A compiled network that was run and timed."""

    folder: Path
    records: Mapping[str, Record]
    """The record of each task id that it is made of."""
    run: NetworkRunResult


@dataclass
class ClassCompilation:
    """Compiles, checks, measures and publishes the network of one device class."""

    request: CompileRequest
    lowered: LoweredNetwork
    folder: Path
    """The folder that users load the network from."""
    compiler: NetworkCompiler
    expected: tuple[Array, ...]
    """Outputs of the network's framework."""
    cancellation: Cancellation
    runner: NetworkRunner | None
    """Runs the network; None where nothing can."""
    unchecked: str = "none of its devices can run it"
    """The reason why the network is not checked; it counts without a runner."""
    stage: Path = Path()
    """The folder in which the network is compiled, while :meth:`publish` runs."""
    errors: tuple[float, float] | None = None
    """Absolute and relative error of the last network that was right."""
    compile_secs: float = 0.0
    chosen: tuple[ChosenInPlace, ...] = ()
    suspects: Mapping[str, Record] | None = None
    """Records of the first network that was wrong, until it is right."""
    untuned_secs: float | None = None
    """Seconds of the untuned network in an earlier run."""
    tried: TriedNetwork | None = None
    """The network that was run and timed last."""

    @property
    def name(self) -> str:
        return self.lowered.device_class.name

    def publish(self) -> NetworkResult:
        supply = self.request.suppliers.get(self.name)
        incumbents = Incumbents(
            self.request.records, supply, self.request.progress.warn, self.request.run_id, self.lowered.fingerprint
        )
        result = NetworkResult(self.name, self.folder, None, None, None, None, None)
        if self.runner is not None:
            times, fingerprint = self.request.untuned_times, self.request.prints[self.name]
            self.untuned_secs = times.find(self.lowered, fingerprint, self.runner.name)
            if self.untuned_secs is not None:
                self.runner.expect()
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
                checked_on="" if self.runner is None else self.runner.name,
                unchecked=self.unchecked if self.runner is None else "",
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
        if self.runner is None or not networks:
            return admitted
        while networks and versions_in_place.expected_secs(len(networks), self.compile_secs) > self.request.spare_secs:
            networks.pop()
        if not networks:
            _LOG.info("no time to choose between kernels of %d tasks by their time in the network", len(near))
            return admitted
        self._tell(f"choosing between kernels of {len(near)} tasks by their time in the network")
        deadline = time.monotonic() + 2 * self.request.spare_secs
        folders = {0: self.stage}
        try:
            for number, records in enumerate(networks, 1):
                with self._only_warned("a version of its kernels is not tried"):
                    folder = self.stage.with_name(f"version-{number}")
                    folders[number] = self.compiler.compile_network(self.lowered, traces(records), folder)
            with self._only_warned("its kernels are not chosen by their time in it"):
                return self._with_chosen(admitted, incumbents, near, folders, self.runner, deadline)
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
        runner: NetworkRunner,
        deadline: float,
    ) -> AdmittedRecords:
        """See :meth:`_chosen_in_place`. ``folders``: of the networks by the number of the version."""
        if len(folders) == 1:
            return admitted
        changed = versions_in_place.fastest(near, self.lowered, folders, runner, deadline)
        if not changed:
            return admitted
        records = {**admitted.records, **{task_id: record for task_id, (record, _) in changed.items()}}
        chosen = dataclasses.replace(admitted, records=records)
        folder = self.stage.with_name("chosen")
        self.compiler.compile_network(self.lowered, traces(records), folder, self._extra(chosen))
        absolute, relative = compare(runner.outputs(folder), self.expected)
        if not relative <= tolerance(self.lowered):
            raise UncheckedError(f"with those it is wrong: relative error {relative:.2g}")
        before_secs, secs = runner.measure_in_turn(self.stage, folder)
        if not is_worth_it(secs, before_secs):
            return admitted
        self.stage, self.errors = folder, (absolute, relative)
        choices = [why for _, why in changed.values()]
        self.chosen = (*(each for each in self.chosen if each.task_id not in changed), *choices)
        if not is_busy(runner.others_cores):  # what is kept is not asked again
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
        if self.runner is None:
            return None
        self._tell("comparing the network with its framework")
        try:
            outputs = self._outputs(self.runner, folder, records)
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

    def _outputs(self, runner: NetworkRunner, folder: Path, records: Mapping[str, Record]) -> tuple[Array, ...]:
        """Of the network in ``folder``, timed too where nothing else has to be timed beside it."""
        if self.untuned_secs is None or not records:
            return runner.outputs(folder)
        self.tried = TriedNetwork(folder, dict(records), runner.tried(folder))
        return self.tried.run.outputs

    def _cannot_check(self, error: Exception) -> None:
        self._warn(f"is not checked: {error}")
        self.unchecked, self.runner, self.errors = str(error), None, None

    def _measured(self, result: NetworkResult, admitted: AdmittedRecords) -> NetworkResult:
        """The result with the times, and what is to be published by them."""
        if self.runner is None:
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
            others_cores=self.tried.run.others_cores if self.tried else None,
        )
        return self._beside_framework(timed)

    def _last_times(self, admitted: AdmittedRecords) -> tuple[float, InNetworkTimes] | None:
        """Of what is to be published, where it was tried last."""
        tried = self.tried
        if tried is None or (tried.folder, tried.records) != (self.stage, admitted.records):
            return None
        return tried.run.times

    def _with_kernels(self, result: NetworkResult, admitted: AdmittedRecords) -> NetworkResult:
        """The result with the time of each kernel of what is to be published, where it can be had."""
        if self.runner is None or result.secs is None:
            return result
        times = self._last_times(admitted)
        try:
            if times is None:
                self._tell("timing the kernels in the network")
            timed = self.runner.in_place(self.stage) if times is None else times[1]
        except Exception as error:
            self._warn(f"has kernels that are not timed in it: {brief(error)}")
            return result
        records = admitted.records if result.published == "tuned" else {}
        with RecordReader(self.request.records) as reader:
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
        assert self.runner is not None
        untuned_secs: float | None = None
        self._tell("timing the network")
        try:
            if untuned is None:
                tuned_secs = self.runner.measure_secs(self.stage)
                untuned_secs = None if admitted.records else tuned_secs
            else:
                tuned_secs, untuned_secs = self.runner.measure_in_turn(self.stage, untuned)
        except Exception as error:  # of either: the untuned one took too long, say
            self._not_compared(error)
            tuned_secs = self.runner.measure_secs(self.stage)
            return dataclasses.replace(result, tuned_secs=tuned_secs, others_cores=self.runner.others_cores)
        others = self.runner.others_cores
        timed = dataclasses.replace(result, tuned_secs=tuned_secs, untuned_secs=untuned_secs, others_cores=others)
        if untuned_secs is not None and not timed.on_busy_host:
            times, fingerprint = self.request.untuned_times, self.request.prints[self.name]
            times.keep(self.lowered, fingerprint, self.runner.name, untuned_secs)
        return self._beside_framework(timed)

    def _beside_framework(self, result: NetworkResult) -> NetworkResult:
        """The result with the framework's time, where the network runs on this machine and is compared at all."""
        if self.runner is None or self.runner.name != THIS_MACHINE or result.untuned_secs is None:
            return result
        threads = self.request.prints[self.name].threads
        self._tell("timing the network in its framework")
        try:
            torch_secs = self.request.network.measure_framework_secs(threads, _FRAMEWORK_REPEATS)
        except Exception as error:
            self._warn(f"is not compared with its framework's time: {error}")
            return result
        return dataclasses.replace(result, torch_secs=torch_secs)

    def _instead_of(self, result: NetworkResult, untuned: Path | None, why: str) -> NetworkResult:
        """The result where the tuned network, which was right, crashes when it is timed: the untuned one if that is
        right."""
        assert self.runner is not None
        problem = f"the tuned network fails when it is timed: {why}"
        errors = self._errors_of(untuned) if untuned is not None else None
        if untuned is None or errors is None:
            return dataclasses.replace(
                result, published="nothing", problem=problem, max_abs_error=None, max_rel_error=None
            )
        self.stage = untuned
        untuned_secs: float | None = None
        with contextlib.suppress(FleetTuneError):
            untuned_secs = self.runner.measure_secs(untuned)
        absolute, relative = errors
        return dataclasses.replace(
            result,
            published="untuned",
            problem=problem,
            untuned_secs=untuned_secs,
            others_cores=None if untuned_secs is None else self.runner.others_cores,
            max_abs_error=absolute,
            max_rel_error=relative,
        )

    def _errors_of(self, untuned: Path) -> tuple[float, float] | None:
        """Absolute and relative, of the untuned network where it is right; else None, and it is not published."""
        assert self.runner is not None
        try:
            absolute, relative = compare(self.runner.outputs(untuned), self.expected)
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
        self.request.progress.tell(f"{doing} ({self.name})" if len(self.request.lowered) > 1 else doing)

    def _warn(self, what: str) -> None:
        self.request.progress.warn(f"the network of {self.name} {what}")

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
        fingerprint = self.request.prints[self.name]
        return manifest.made_of(
            self.lowered.tasks, admitted.records, self.request.rules, fingerprint, self.request.records
        )

    def _fallbacks(self, admitted: AdmittedRecords, incumbents: Incumbents) -> tuple[Fallback, ...]:
        tunable = {entry.task.id for entry in self.request.entries}
        fallbacks = []
        for task in self.lowered.tasks:
            faults, record = admitted.faults.get(task.id, []), admitted.records.get(task.id)
            was_supplied = task.id in incumbents.supplied
            if task.id not in tunable or not (faults or was_supplied or record is None):
                continue
            reason = reason_of(faults) if faults else "no verified record"
            used = FallbackKernel.FIRST_CHOICE if was_supplied else FallbackKernel.RECORD
            if record is None:
                used = FallbackKernel.UNSCHEDULED
            fallbacks.append(Fallback(task.workload.name, reason, used))
        return tuple(fallbacks)


def traces(records: Mapping[str, Record]) -> dict[str, str | None]:
    """The trace of each record, by task id."""
    return {task_id: record.trace for task_id, record in records.items()}
