"""The second step of a run: its tasks are described, searched and measured until a limit is reached or a signal comes.

:func:`settle` replaces it in a run without a trial.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable

from actors.clients.calls import error_line
from actors.clients.threads import in_thread
from actors.run_hosts import RunHosts
from actors.session_plan import SessionPlan, snapshot_without_trials
from actors.tuning_session import TuningSession
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.domain import Record
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import Progress
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.task_data import MEASURED_BY
from fleet_tune.runs.context import RunContext
from fleet_tune.runs.finishing_time import finishing_secs
from fleet_tune.runs.interruption import RunInterruptedError, beside, close_started
from fleet_tune.runs.methods import method_of
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes, run_store
from fleet_tune.runs.preparing.ready_tasks import ReadyTasks, in_order
from fleet_tune.runs.run_callback import RunCallback
from fleet_tune.runs.shared_store.efforts import tried_in
from fleet_tune.runs.shared_store.exchange import take_speeds
from fleet_tune.runs.tuned import Tuned
from fleet_tune.runs.tuning.late_classes import LateClasses
from fleet_tune.runs.tuning.task_feed import TaskFeed

OnRecord = Callable[[Record], Awaitable[None]]
_LOG = logging.getLogger(__name__)


class RunTuning:
    """The tuning of a run in progress: its session, and the classes that take part."""

    def __init__(
        self, context: RunContext, hosts: RunHosts, session: TuningSession, prepared: Prepared, feed: TaskFeed
    ) -> None:
        self.hosts = hosts
        self.session = session
        self.prepared = prepared
        self._context = context
        self._feeds = [feed]
        late_classes = LateClasses(context.request, context.run_id, context.store, context.reporter)
        self._callbacks = (*context.callbacks, late_classes)

    @property
    def is_interrupted(self) -> bool:
        """True after a signal has come."""
        return self._context.interruption.came

    def add_classes(self, late: Prepared) -> None:
        """See :meth:`fleet_tune.runs.run_callback.OngoingTuning.add_classes`."""
        self.prepared = self.prepared.with_classes(late)
        feed = TaskFeed(late, self._context.request.fleet, self.session.window, is_required=False)
        self._feeds.append(feed)
        feed.start(self.session)

    async def run(self, cursor: int, on_record: OnRecord | None, traces: bool) -> None:
        """Tune until the session ends. ``on_record`` is awaited for each record after ``cursor``. A signal stops the
        session. Raises RunInterruptedError if a signal has come before."""
        context, session, first = self._context, self.session, self._feeds[0]
        if self.is_interrupted:
            raise RunInterruptedError
        session.begin()
        first.start(session)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(beside(self._stop_after_signal()))
            for callback in self._callbacks:
                await stack.enter_async_context(beside(self._accompanied_by(callback)))
            await stack.enter_async_context(beside(context.reporter.follow(session)))
            records = aiter(session.records(cursor, traces))
            while True:
                try:
                    record = await context.interruption.unless_failed(anext(records))
                except StopAsyncIteration:
                    break
                first.check()  # a run that fails to describe its tasks must not wait for them
                if record is not None:
                    for callback in self._callbacks:
                        callback.on_record(record)
                    if on_record is not None:
                        await on_record(record)
            await context.reporter.report_last(session)

    async def describe_all(self) -> None:
        """Wait for the tasks that are not described yet, since a network is compiled with all of its tasks. A signal
        ends the wait."""
        if self.is_interrupted:
            return
        reporter = self._context.reporter
        if all(feed.is_done for feed in self._feeds):
            return
        reporter.show("describing")
        async with beside(reporter.show_compiling(reporter.compile_progress(), "describing")):
            with contextlib.suppress(RunInterruptedError):
                await self._context.interruption.unless(asyncio.gather(*(feed.wait() for feed in self._feeds)))

    def result(self) -> Tuned:
        """Return the value of the finished tuning."""
        prepared = dataclasses.replace(self.prepared, devices=self.session.members(with_absent=True))
        ready = [each for feed in self._feeds for each in feed.ready]
        tasks, left_out = in_order(prepared.undescribed, ready)
        return Tuned(
            prepared=prepared,
            tasks=tasks,
            left_out=(*prepared.left_out, *left_out),
            is_complete=len(ready) == len(prepared.undescribed),
            progress=self._context.reporter.last,
        )

    def close(self) -> None:
        """End the description of tasks."""
        for feed in self._feeds:
            feed.close()

    async def _stop_after_signal(self) -> None:
        await self._context.interruption.wait()
        try:
            await self.session.stop()
        except Exception:  # the stream of records raises the relevant error
            _LOG.exception("the session does not stop")

    async def _accompanied_by(self, callback: RunCallback) -> None:
        try:
            await callback.during(self)
        except Exception as error:
            _LOG.exception("%s", callback.failure)
            self.session.notice(f"{callback.failure}: {error_line(error)}", False)


async def tune(
    context: RunContext,
    prepared: Prepared,
    hosts: RunHosts,
    lowering: LoweringProcess,
    on_record: OnRecord | None = None,
    traces: bool = False,
) -> Tuned:
    """Tune the tasks of a prepared network, and close the hosts.

    Args:
        context: the run.
        prepared: the network, some of whose tasks need trials.
        hosts: the started builders and devices.
        lowering: the process that lowered the network. It runs the network once more and is closed.
        on_record: is awaited for each record of this run once it is durable.
        traces: the records for ``on_record`` contain the traces of the candidates.

    Raises RunInterruptedError if a signal comes before the tuning begins.
    """
    request, unless_interrupted = context.request, context.interruption.unless
    async with contextlib.AsyncExitStack() as stack:
        feed = TaskFeed(prepared, request.fleet, hosts.window, is_required=True)
        stack.callback(feed.close)
        feed.describe()
        prepared, meta = await unless_interrupted(
            in_thread(run_store.open_run_store, prepared, request, context.run_id)
        )
        plan = _session_plan(context, prepared)
        starting = asyncio.ensure_future(TuningSession.start(hosts, plan, request.records, meta))
        stack.push_async_callback(close_started, starting)
        # The check takes seconds in one thread: the actors start meanwhile, and wait for its end.
        async with beside(context.reporter.announce_waiting()):
            (prepared, check_secs), session = await unless_interrupted(
                asyncio.gather(in_thread(_checked, prepared, lowering), starting)
            )
        if request.limits.time_budget_secs is not None:
            context.reporter.finishing_secs = finishing_secs(request.limits.time_budget_secs, check_secs)
        tuning = RunTuning(context, hosts, session, prepared, feed)
        stack.callback(tuning.close)
        first_seq = await session.last_seq()
        await tuning.run(first_seq, on_record, traces)
        await tuning.describe_all()
        tuned = tuning.result()
        await session.close()
        # Read before publishing: first choices that are measured to compile a task do not count as its search.
        tried = await in_thread(tried_in, request.records, first_seq)
        return dataclasses.replace(tuned, tried=frozenset(tried))


def _checked(prepared: Prepared, lowering: LoweringProcess) -> tuple[Prepared, float]:
    """Return the checked network, and the seconds that the check took."""
    began = time.monotonic()
    return device_classes.check(prepared, lowering), time.monotonic() - began


async def settle(context: RunContext, prepared: Prepared, hosts: RunHosts, lowering: LoweringProcess) -> Tuned:
    """Skip the tuning of a run whose tasks are all settled by the shared store, and close the hosts. Tasks over dynamic
    rows are described, because their records are ranked by their sketches. Another task is described only if it turns
    out to need a first choice.

    The networks of this machine's classes are not compared with the framework here, because they are compared before
    they are published, which follows at once. The networks of other classes are compared here.
    """
    request, unless_interrupted = context.request, context.interruption.unless
    over_rows = [entry for entry in prepared.undescribed if entry.task.fewer_rows]
    with contextlib.closing(ReadyTasks(over_rows, window=hosts.window)) as describing:
        describing.begin()
        prepared, _ = await unless_interrupted(in_thread(run_store.open_run_store, prepared, request, context.run_id))
        plan = _session_plan(context, prepared)

        def settled() -> tuple[Prepared, Progress]:
            checked = device_classes.check(prepared, lowering, prepared.here)
            with RecordStore(request.records) as store:
                for entry in plan.tasks:
                    store.put_task(entry.task)
                if prepared.found is not None:
                    take_speeds(prepared.found, store, prepared.device_ids)
            with RecordReader(request.records) as reader:
                states = {name: event.state for name, event in reader.devices.states().items()}
                views = reader.speeds.shown(), reader.speeds.timed_calls()
                return checked, snapshot_without_trials(plan, hosts, list(reader), states, *views)

        async with beside(context.reporter.announce_waiting()):
            (prepared, last), described = await unless_interrupted(
                asyncio.gather(in_thread(settled), in_thread(_all_of, describing))
            )
    context.reporter.update(last)
    prepared = dataclasses.replace(prepared, devices=hosts.members)
    await hosts.close()
    tried = await in_thread(tried_in, request.records)
    tasks = tuple(described.get(entry.task.id, entry) for entry in prepared.undescribed)
    return Tuned(prepared, tasks, prepared.left_out, progress=last, tried=frozenset(tried))


def _all_of(describing: ReadyTasks) -> dict[str, SearchTask]:
    """Return the described tasks, by their ids."""
    with ACTIVITY.step("describing tasks over dynamic rows"):
        return {ready.entry.task.id: ready.entry for ready in describing}


def _session_plan(context: RunContext, prepared: Prepared) -> SessionPlan:
    request = context.request
    method = method_of(request.method)
    weights_bytes = max((lowered.weights_bytes for lowered in prepared.lowered.values()), default=0)
    return SessionPlan(
        run_id=context.run_id,
        method=method,
        seed=request.seed,
        tasks=prepared.undescribed,
        limits=request.limits,
        # A dataset is collected from kernels that run alone, without the weights of a network.
        rule=MEASURED_BY if request.collects else dataclasses.replace(method.stop_rule, weights_bytes=weights_bytes),
        settled=prepared.settled,
    )
