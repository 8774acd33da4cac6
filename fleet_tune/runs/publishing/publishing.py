"""The third step of a run: the networks of its device classes are compiled from the best records, checked, timed and
moved to the folders from which users load them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection
from pathlib import Path

from actors.clients.threads import in_thread
from actors.run_hosts import RunHosts
from devices.host.file_cache import user_folder
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.device_state import DeviceState
from fleet_tune.base.records.stores.classes import classes_in
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import NetworkResult, Progress
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.context import RunContext
from fleet_tune.runs.finishing_time import SPARE_SHARE
from fleet_tune.runs.interruption import RunInterruptedError, beside
from fleet_tune.runs.published import Published
from fleet_tune.runs.publishing.compile_request import compile_request
from fleet_tune.runs.publishing.first_choices import FirstChoices
from fleet_tune.runs.publishing.incumbents import RecordSupplier
from fleet_tune.runs.publishing.networks import publish_networks
from fleet_tune.runs.publishing.task_results import task_results
from fleet_tune.runs.publishing.untuned_times import UntunedTimes
from fleet_tune.runs.tuned import Tuned


async def publish(context: RunContext, tuned: Tuned, hosts: RunHosts) -> Published:
    """Publish the networks of a run that has tuned. There are none if the run was interrupted, collects a dataset, or
    has recorded devices.

    Args:
        context: the run.
        tuned: the network and its tasks.
        hosts: the closed builders and devices. The turns on the devices are held while networks are measured.
    """
    request, reporter = context.request, context.reporter
    networks: tuple[NetworkResult, ...] = ()
    # Candidates of recorded devices were never built here: there is nothing to compile.
    compiles = not request.collects and not request.fleet.datasets
    if compiles and not context.interruption.came:
        reporter.show("compiling")
        networks = await _compiled(context, tuned, hosts)
        for callback in context.callbacks:
            callback.on_published(networks)
    async with beside(reporter.show_waits()):
        for callback in context.callbacks:
            await callback.after(tuned)
    return Published(tuned, networks, reporter.last)


async def _compiled(context: RunContext, tuned: Tuned, hosts: RunHosts) -> tuple[NetworkResult, ...]:
    request, reporter, interruption = context.request, context.reporter, context.interruption
    progress, cancellation = reporter.compile_progress(), Cancellation()

    def compiled(names: Collection[str]) -> tuple[NetworkResult, ...]:
        with hosts.actors.holding(names, progress.report_step, lambda: cancellation.came):
            return compile_tuned(tuned, request, context.run_id, progress, cancellation)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(RunInterruptedError))
        stack.callback(lambda: reporter.show("compiling", progress))
        # Cancelled however the block ends: an abandoned thread must not publish into a folder that others may use.
        stack.callback(cancellation.cancel)
        async with beside(reporter.show_compiling(progress)):
            names = compiled_on(tuned, request.records)
            networks = await interruption.unless(in_thread(compiled, names))
        if reporter.last is not None:
            reporter.last = with_new_records(reporter.last, tuned, request.records)
        return networks
    return ()


def compile_tuned(
    tuned: Tuned, request: RunRequest, run_id: str, progress: CompileProgress, cancellation: Cancellation
) -> tuple[NetworkResult, ...]:
    """Compile the networks of a run from its own records. For tasks without a record, the analyzer's first choices are
    measured now.

    Args:
        tuned: the network and its tasks.
        request: names the record store and the output folder.
        run_id: the run of new records.
        progress: receives each step.
        cancellation: see :func:`publish_networks`.
    """
    prepared = tuned.prepared
    entries = {entry.task.id: entry for entry in tuned.tasks}
    states = _device_states(request.records)
    with RecordReader(request.records) as reader:
        classes = len(classes_in(reader.meta()))
    suppliers: dict[str, RecordSupplier] = {}
    for name in prepared.lowered:
        device = prepared.device_of(name, states)
        if device is not None:
            suppliers[name] = FirstChoices(
                entries=entries,
                device=device,
                records=request.records,
                artifacts=request.out / "artifacts",
                seed=request.seed,
                measuring=request.fleet.measure,
                progress=progress,
                run_id=run_id,
            )
    compiling = dataclasses.replace(
        compile_request(tuned, request.records, progress, SPARE_SHARE * progress.elapsed_secs),
        run_id=run_id,
        suppliers=suppliers,
        classes=classes,  # a class keeps its folder, whichever other classes take part
        untuned_times=UntunedTimes(user_folder()),
    )
    return publish_networks(compiling, request.out, cancellation)


def compiled_on(tuned: Tuned, records: Path) -> list[str]:
    """Return the ids of the devices on which :func:`compile_tuned` measures."""
    prepared, states = tuned.prepared, _device_states(records)
    devices = (prepared.device_of(name, states) for name in prepared.lowered)
    return [device.name for device in devices if device is not None]


def with_new_records(last: Progress, tuned: Tuned, records: Path) -> Progress:
    """Add to the last snapshot of a run the records that were stored while its networks were compiled: first choices of
    tasks without a record, and revisions of records that turned out to be wrong. Tasks that turned out to have no
    sketch are removed."""
    rules = {sketch.id: sketch.rule for entry in tuned.tasks for sketch in entry.sketches}
    now = {each.task_id: each for each in task_results((entry.task for entry in tuned.tasks), rules, records)}
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
        if each.task_id in now
    )
    new_trials = last.new_trials + trials - sum(last.outcomes.values())
    return dataclasses.replace(last, tasks=tasks, outcomes=outcomes, trials=trials, new_trials=new_trials)


def _device_states(records: Path) -> dict[str, DeviceState]:
    with RecordReader(records) as reader:
        return {name: event.state for name, event in reader.devices.states().items()}
