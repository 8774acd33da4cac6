"""Networks compiled from the records of any store, without a tuning."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path

from devices.networks.frontend import load_network
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.records.datasets.sources import RECORDS_FILE
from fleet_tune.base.records.stores.classes import classes_in
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import TuneResult
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.fleet.fleet_probe import probe_fleet
from fleet_tune.runs.preparing.device_classes import check, described_tasks, lower_network
from fleet_tune.runs.preparing.library_check import check_library
from fleet_tune.runs.preparing.out_folder import held_folder
from fleet_tune.runs.preparing.present_network import refuse_other_network
from fleet_tune.runs.preparing.ready_tasks import in_order
from fleet_tune.runs.preparing.run_store import bind_store, without_damaged
from fleet_tune.runs.publishing.compile_request import compile_request
from fleet_tune.runs.publishing.networks import check_records, publish_networks
from fleet_tune.runs.publishing.task_results import task_results
from fleet_tune.runs.tuned import Tuned


def compile_from_records(request: RunRequest, records: Path) -> TuneResult:
    """Compile a network from the records of a store, without tuning.

    Args:
        request: the network, the fleet for which it is compiled, the output folder, the inputs and the precision.
        records: the record store.

    Raises UserError.
    """
    started = time.monotonic()
    check_library(request.fleet)
    try:
        RecordReader(records).close()
    except RecordStoreError as error:
        raise type(error)(error.problem, "give the path of a records.db with --records") from error
    with held_folder(request.out):
        tuned = _tuned_before(request, records)
        return _published(tuned, records, request.out, started)


def _tuned_before(request: RunRequest, records: Path) -> Tuned:
    """Prepare the network. Its tasks count as tuned by the runs whose records the store has."""
    with contextlib.closing(LoweringProcess()) as lowering:
        with ACTIVITY.step("reading the network"):
            network = load_network(request.network, request.inputs, request.trust_model, request.shapes)
            network = network.in_precision(request.precision, request.max_error)
        refuse_other_network(request.out, network.name)
        with ACTIVITY.step("probing the devices"):
            devices = probe_fleet(request.fleet)
        prepared = lower_network(network, devices, request.fleet, lowering)
        tasks, left_out = in_order(prepared.undescribed, described_tasks(prepared, request.fleet))
        prepared = dataclasses.replace(prepared, left_out=(*prepared.left_out, *left_out))
        prepared = check(prepared, lowering)
    prepared = without_damaged(prepared, records)
    return Tuned(prepared, tasks, prepared.left_out)


def _published(tuned: Tuned, records: Path, out: Path, started: float) -> TuneResult:
    prepared = tuned.prepared
    with RecordReader(records) as reader:
        outcomes = {outcome.value: count for outcome, count in reader.counts().items()}
    classes = len(prepared.lowered)
    if (out / RECORDS_FILE).exists():
        bind_store(out / RECORDS_FILE, prepared)  # raises for the folder of another network or target
        with RecordReader(out / RECORDS_FILE) as reader:
            classes = len(classes_in(reader.meta()))  # a class keeps its folder, whichever other classes take part
    check_records(prepared.lowered, tuned.tasks, records, prepared.network.conversion)
    progress = CompileProgress(time.monotonic() - started)
    request = dataclasses.replace(compile_request(tuned, records, progress), classes=classes)
    with ACTIVITY.step("compiling") as say:
        progress.said = say
        networks = publish_networks(request, out, Cancellation())
    return TuneResult(
        network=prepared.network.name,
        out=out,
        tasks=task_results((entry.task for entry in tuned.tasks), request.rules, records),
        outcomes=outcomes,
        new_trials=0,
        elapsed_secs=time.monotonic() - started,
        interrupted=False,
        networks=networks,
        left_out=tuned.left_out,
        inputs=prepared.network.inputs_from,
        notices=progress.notices,
    )
