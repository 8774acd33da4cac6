"""One run, from its request to its result: it is prepared, tuned and published.

Each step is a function that takes the value of the step before and returns the next one:
:class:`~fleet_tune.runs.prepared.Prepared`, :class:`~fleet_tune.runs.tuned.Tuned`,
:class:`~fleet_tune.runs.published.Published`. Work that accompanies the steps is a
:class:`~fleet_tune.runs.run_callback.RunCallback`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.clients.threads import in_thread
from actors.clusters.cluster import Cluster, connected
from actors.run_hosts import RunHosts
from actors.session_plan import share_of
from devices.networks.frontend import locate
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.errors import ClusterError, StartInterruptedError
from fleet_tune.base.records.datasets.sources import check_source
from fleet_tune.base.records.stores.reader import check_store
from fleet_tune.base.results import Progress, TuneResult
from fleet_tune.runs.callbacks.fleet_follower import FleetFollower
from fleet_tune.runs.callbacks.run_metrics import RunMetrics
from fleet_tune.runs.callbacks.shared_store import SharedStore
from fleet_tune.runs.context import RunContext
from fleet_tune.runs.fleet.tracker_boards import with_boards
from fleet_tune.runs.interruption import Interruption, RunInterruptedError, beside, close_started
from fleet_tune.runs.methods import method_of
from fleet_tune.runs.metrics import RunInfo
from fleet_tune.runs.preparing.library_check import check_library
from fleet_tune.runs.preparing.out_folder import held_folder
from fleet_tune.runs.preparing.preparation import prepare
from fleet_tune.runs.progress_file import ProgressFile
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.run_callback import RunCallback

if TYPE_CHECKING:
    from fleet_tune.runs.prepared import Prepared
    from fleet_tune.runs.published import Published
    from fleet_tune.runs.tuning.tuning import OnRecord


@dataclass(frozen=True)
class FinishedRun:
    """A run that is over."""

    result: TuneResult
    published: Published | None
    """The last value of the run. None if a signal came before the tuning began."""


async def run(
    request: RunRequest,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_record: OnRecord | None = None,
    traces: bool = False,
    follows_fleet: bool = True,
    callbacks: Sequence[RunCallback] = (),
) -> FinishedRun:
    """Prepare, tune and publish a network. A signal ends the run early, with the results so far.

    Args:
        request: the request.
        on_progress: is called with a snapshot about twice a second.
        on_record: is awaited for each record of this run once it is durable.
        traces: the records for ``on_record`` contain the traces of the candidates.
        follows_fleet: let devices and machines join and leave during the run.
        callbacks: accompany the run, in addition to its own callbacks.

    Raises UserError for problems that the caller can correct. A second SIGINT raises KeyboardInterrupt as usual.
    """
    method_of(request.method)
    check_library(request.fleet)
    if not isinstance(request.network, tuple):
        locate(request.network)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(held_folder(request.out))
        if request.transfer_from is not None:
            check_source(request.transfer_from)
        check_store(request.records)
        context = _context(request, on_progress, follows_fleet, callbacks)
        stack.callback(context.reporter.close)
        for callback in context.callbacks:
            callback.before()
            stack.callback(callback.close)
        stack.enter_context(context.interruption.listening())
        context.reporter.announce()
        return await _take_steps(context, stack, on_record, traces)


def _context(
    request: RunRequest,
    on_progress: Callable[[Progress], None] | None,
    follows_fleet: bool,
    callbacks: Sequence[RunCallback],
) -> RunContext:
    everyone: list[RunCallback] = []
    run_id, interruption = uuid.uuid4().hex[:12], Interruption()
    reporter = ProgressReporter(request.limits, on_progress, everyone, ProgressFile(request.out))
    store = SharedStore(request, run_id, reporter, interruption)
    everyone.append(store)
    if request.metrics_port is not None or request.metrics_push is not None:
        network = "module" if isinstance(request.network, tuple) else str(request.network)
        run = RunInfo(network, run_id, method_of(request.method).name, str(request.seed))
        port, host, gateway = request.metrics_port, request.metrics_host, request.metrics_push
        everyone.append(RunMetrics(port, host, gateway, run, request.out))
    if follows_fleet:
        everyone.append(FleetFollower())
    everyone += callbacks
    return RunContext(request, run_id, interruption, reporter, store, tuple(everyone))


async def _take_steps(
    context: RunContext, stack: contextlib.AsyncExitStack, on_record: OnRecord | None, traces: bool
) -> FinishedRun:
    """Prepare, tune and publish. Everything that is started is closed with the ``stack``."""
    prepared: Prepared | None = None
    published: Published | None = None
    with contextlib.suppress(RunInterruptedError):
        # Its process loads TVM while Ray starts.
        lowering = stack.enter_context(contextlib.closing(LoweringProcess()))
        # In this thread and before any other thread starts: Ray forks its processes here, and they end with the thread
        # that forked them.
        cluster = await _connected(context, stack)
        async with beside(_fail_when_lost(cluster, context.interruption)):
            context = await _with_listed_boards(context)
            starting = _start_hosts(context, cluster)
            stack.push_async_callback(close_started, starting)
            prepared = await prepare(context, starting, lowering)
            hosts = starting.result()
            # TVM is loaded by now.
            from fleet_tune.runs.preparing.device_classes import needs_no_trial
            from fleet_tune.runs.tuning.tuning import settle, tune

            if needs_no_trial(prepared, context.request):
                tuned = await settle(context, prepared, hosts, lowering)
            else:
                tuned = await tune(context, prepared, hosts, lowering, on_record, traces)
        # Publishing needs the cluster for its turns at most: a loss of the cluster does not matter any more.
        from fleet_tune.runs.publishing.publishing import publish

        published = await publish(context, tuned, hosts)
    return FinishedRun(_result(context, prepared, published), published)


async def _connected(context: RunContext, stack: contextlib.AsyncExitStack) -> Cluster:
    """Connect to the cluster until the stack is closed. Raises RunInterruptedError if a signal comes meanwhile."""
    await asyncio.sleep(0)  # lets the handler of a signal that has come run
    if context.interruption.came:
        raise RunInterruptedError
    try:
        return stack.enter_context(connected(context.request.address))
    except StartInterruptedError as error:
        await context.interruption.wait()
        raise RunInterruptedError from error


async def _fail_when_lost(cluster: Cluster, interruption: Interruption) -> None:
    """End the run when its cluster is lost."""
    reason = await cluster.lost()
    next_step = "run the same command again: it resumes"
    interruption.fail(ClusterError(f"the Ray cluster of this run is lost: {reason}", next_step))


async def _with_listed_boards(context: RunContext) -> RunContext:
    """Add the boards that trackers list to the fleet."""
    request = context.request
    if not request.fleet.all_of_a_key:
        return context
    fleet = await context.interruption.unless(in_thread(with_boards, request.fleet))
    return dataclasses.replace(context, request=dataclasses.replace(request, fleet=fleet))


def _start_hosts(context: RunContext, cluster: Cluster) -> asyncio.Future[RunHosts]:
    """Start the builders and devices in the background."""
    request, run_id = context.request, context.run_id
    return asyncio.ensure_future(
        RunHosts.start(
            cluster,
            request.fleet,
            run_id,
            request.out / "artifacts",
            share=share_of(request, run_id),
            report_wait=context.reporter.announce,
        )
    )


def _result(context: RunContext, prepared: Prepared | None, published: Published | None) -> TuneResult:
    """Return the result of a run that is over. ``published`` is None if the run was interrupted before its tuning
    began; ``prepared`` may be None then too."""
    last = None if published is None else published.progress
    if published is not None:
        prepared = published.tuned.prepared
    left_out = () if prepared is None else prepared.left_out
    return TuneResult(
        network=str(context.request.network) if prepared is None else prepared.network.name,
        out=context.request.out,
        tasks=last.tasks if last else (),
        outcomes=last.outcomes if last else {},
        new_trials=last.new_trials if last else 0,
        elapsed_secs=context.reporter.elapsed_secs,
        interrupted=context.interruption.came,
        networks=() if published is None else published.networks,
        signal_number=context.interruption.signal_number,
        transferred=None if published is None else published.tuned.transferred,
        left_out=left_out if published is None else published.tuned.left_out,
        inputs="" if prepared is None else prepared.network.inputs_from,
        notices=last.notices if last else (),
        device_time=last.device_time_whole if last else {},
        store=None if prepared is None or prepared.found is None else prepared.found.summary,
        restarts=last.restarts if last else {},
        not_tried=last.not_tried if last else (),
    )
