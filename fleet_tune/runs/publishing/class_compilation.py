"""The network of one device class, from its records to its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from devices.networks.compiled import network_folder
from fleet_tune.base.results import Fallback, FallbackKernel, NetworkResult
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.publishing import manifest
from fleet_tune.runs.publishing.choice_in_network import ChoiceInNetwork
from fleet_tune.runs.publishing.class_network import CheckedNetwork, ClassNetwork
from fleet_tune.runs.publishing.incumbents import Incumbents, RecordSupplier
from fleet_tune.runs.publishing.network_check import NetworkCheck, RunnerLostError
from fleet_tune.runs.publishing.network_runners import NetworkRunner
from fleet_tune.runs.publishing.network_timing import NetworkTiming, TimedNetwork
from fleet_tune.runs.publishing.record_admission import AdmittedRecords, UnscheduledWrongError, admit
from fleet_tune.runs.publishing.task_results import reason_of


def publish_class(
    network: ClassNetwork, folder: Path, runner: NetworkRunner | None, cancellation: Cancellation
) -> NetworkResult:
    """Compile, check, time and publish the network of one device class.

    Args:
        network: the network.
        folder: the folder from which users load it.
        runner: runs it before it is published. None if nothing can run it.
        cancellation: after a cancellation nothing is published.

    Raises UserError for problems that users can correct, and the errors of TVM.
    """
    request, lowered = network.request, network.lowered
    incumbents = Incumbents(
        path=request.records,
        supplier=_supplier(request.suppliers.get(network.name), runner),
        warn=request.progress.warn,
        run_id=request.run_id,
        network=lowered.fingerprint,
        entries=request.entries,
    )
    converted = {} if lowered.conversion is None else lowered.conversion.counts
    result = NetworkResult(
        network.name,
        folder,
        None,
        None,
        None,
        None,
        None,
        framework=request.network.framework.name,
        precision=lowered.precision,
        converted=converted,
    )
    untuned_secs: float | None = None
    if runner is not None:
        untuned_secs = network.find_untuned_secs(runner.name)
        if untuned_secs is not None:
            runner.expect()
    with network_folder.staging(folder) as stage:
        check = NetworkCheck(network, stage, runner, times_it=untuned_secs is not None)
        try:
            admitted = admit([task.id for task in lowered.tasks], incumbents, check.judge)
        except UnscheduledWrongError as error:
            problem = f"it is wrong also without any schedule: {error}"
            return dataclasses.replace(result, published="nothing", problem=problem)
        except RunnerLostError as error:
            problem = f"it is wrong, and which kernel is at fault could not be found: {error}"
            return dataclasses.replace(result, published="nothing", problem=problem)
        fallbacks = _fallbacks(network, admitted, incumbents)
        network.report_step("compiling the network")
        network.compile_whole(admitted.records, stage)
        earlier_choices = tuple(filter(None, map(incumbents.chosen, admitted.records.values())))
        checked = CheckedNetwork(
            folder=stage,
            records=admitted.records,
            errors=check.errors,
            run=check.run_of(admitted.records),
            special=check.special,
            chosen=earlier_choices,
        )
        runner = check.runner
        if runner is not None:
            checked = ChoiceInNetwork(network, check, runner, incumbents).chosen(checked)
        _warn_of_error(network, checked)
        result = dataclasses.replace(
            result.with_errors(checked.errors),
            checked_on="" if runner is None else runner.name,
            unchecked=check.unchecked if runner is None else "",
            special="" if runner is None else checked.special,
            fallbacks=fallbacks,
            chosen_in_network=checked.chosen,
        )
        timed = TimedNetwork(result, checked.folder)
        if runner is not None:
            timed = NetworkTiming(network, runner, checked, untuned_secs).timed(result)
        return _published(timed, folder, cancellation)


def _supplier(supplier: RecordSupplier | None, runner: NetworkRunner | None) -> RecordSupplier | None:
    """Return a supplier before whose calls the runner releases the device: a server has one client at a time."""
    if supplier is None or runner is None:
        return supplier

    def supply(task_ids: Sequence[str]) -> None:
        runner.release()
        supplier(task_ids)

    return supply


def _warn_of_error(network: ClassNetwork, checked: CheckedNetwork) -> None:
    """Warn if the error is above the limit for which precisions were chosen: tuned kernels add in another order."""
    conversion, errors = network.lowered.conversion, checked.errors
    limit = None if conversion is None else conversion.max_error
    if limit is not None and errors is not None and errors.relative > limit:
        network.warn(f"has an error of {errors.relative:.2g}, above --max-error {limit:g}: give a smaller one")


def _published(timed: TimedNetwork, folder: Path, cancellation: Cancellation) -> NetworkResult:
    """Complete the manifest, and move the network to the folder from which users load it, unless nothing is
    published."""
    result = timed.result
    if result.published != "tuned":
        result = dataclasses.replace(result, chosen_in_network=())
    if result.published == "nothing":
        return result
    network_folder.update_manifest(timed.folder, manifest.found(result))
    result = dataclasses.replace(result, libraries=network_folder.libraries_in(timed.folder))
    with cancellation.publishing():
        network_folder.publish(timed.folder, folder)
    return result


def _fallbacks(network: ClassNetwork, admitted: AdmittedRecords, incumbents: Incumbents) -> tuple[Fallback, ...]:
    tunable = {entry.task.id for entry in network.request.entries}
    fallbacks = []
    for task in network.lowered.tasks:
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
