"""One tuning run from the network to the compiled one: what ``fleet_tune.api`` wraps."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.clients.calls import error_line
from actors.clients.threads import in_thread
from actors.clusters.cluster import Cluster, connected
from actors.run_hosts import RunHosts
from actors.session_plan import SessionPlan, share_of
from actors.tuning_session import TuningSession
from devices.networks.frontend import Network, locate
from devices.networks.processes.lowering_process import LoweringProcess
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.domain import Fingerprint, Record
from fleet_tune.base.errors import ClusterError, FleetTuneError, RecordStoreError, UserError
from fleet_tune.base.records.datasets.sources import check_source
from fleet_tune.base.records.sharing.shared import check_shared, shared_store
from fleet_tune.base.records.sharing.team import Team, met
from fleet_tune.base.records.stores.reader import check_store
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import NetworkResult, Progress, SkippedPart, Transferred, TuneResult
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.task_data import MEASURED_BY
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.fleet.fleet_watch import FleetWatch
from fleet_tune.runs.fleet.tracker_boards import with_boards
from fleet_tune.runs.interruption import Interruption, RunInterruptedError, beside
from fleet_tune.runs.methods import method_of
from fleet_tune.runs.metrics import Metrics
from fleet_tune.runs.preparing.out_folder import held_folder
from fleet_tune.runs.publishing.compile_progress import CompileProgress
from fleet_tune.runs.shared_store.efforts import note_efforts, tried_in
from fleet_tune.runs.shared_store.exchange import StoreSubscription, StoreUploader, take
from fleet_tune.runs.shared_store.lookup import StoreLookup

if TYPE_CHECKING:
    from fleet_tune.runs.preparing.joining import Newcomer
    from fleet_tune.runs.preparing.preparation import Prepared
    from fleet_tune.runs.preparing.ready_tasks import ReadyTask, ReadyTasks
    from fleet_tune.runs.transfer.transfer_prior import TransferPrior

_PROGRESS_SECS = 0.5
_GIVE_EVERY_SECS = 60.0
_LOG = logging.getLogger(__name__)


def _read_network(spec: Any, inputs: Path | None, trusted: bool) -> Network:
    # Here, in a thread, and not at the top: loading TVM takes seconds, in which the actors start.
    from fleet_tune.runs.preparing import preparation

    return preparation.read_network(spec, inputs, trusted)


async def _close_started(starting: asyncio.Future[Any]) -> None:
    """Close what ``starting`` makes, also where that is still being started: what is cancelled closes itself."""
    if isinstance(starting, asyncio.Task) and not starting.cancelling():
        starting.cancel()
    try:
        started = await starting
    except (asyncio.CancelledError, Exception):  # whoever waits for it is told
        return
    await started.close()


@dataclass
class Run:
    """One run. ``async with run.opened()``, then iterate :meth:`records`, then :meth:`finish`. ``follows_fleet``:
    devices and machines come and go while it goes on."""

    request: RunRequest
    on_progress: Callable[[Progress], None] | None
    follows_fleet: bool = True
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _started: float = field(default_factory=time.monotonic)
    _hosts: RunHosts | None = None
    _session: TuningSession | None = None
    _prepared: Prepared | None = None
    _metrics: Metrics | None = None
    _last: Progress | None = None
    _start_seq: int = 0
    _stopping: asyncio.Future[None] | None = None
    _ready: list[ReadyTask] = field(default_factory=list)
    _joining: asyncio.Task[None] | None = None
    _joining_late: list[asyncio.Task[None]] = field(default_factory=list)  # tasks of classes that came later
    _welcoming: asyncio.Task[None] | None = None
    _following: asyncio.Task[None] | None = None
    _waits_for: str = ""  # before it begins
    _preparing: str = ""  # the class for which the network is just being prepared
    _watching: asyncio.Task[None] | None = None
    _teachings: dict[str, TransferPrior] = field(default_factory=dict)  # by device class
    _store: Path | None = None  # the one that several runs share, while it can be used
    _found: StoreLookup | None = None  # in it
    _team: Team | None = None  # whose copy it is
    _is_spared: bool = False  # no task needs a trial: nobody is started to tune
    _giving: StoreUploader | None = None
    _others: StoreSubscription | None = None  # who give to it too
    # Seconds and trials of the tuning, and the tasks that had some, once it is over.
    _tuned: tuple[float, int, frozenset[str]] = (0.0, 0, frozenset())

    def __post_init__(self) -> None:
        self._interruption = Interruption(self._stop)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Run]:
        """Import the network and start the actors; on leaving, everything is closed. A signal on the way leaves a run
        without records."""
        request = self.request
        # What is plainly wrong is told before anything starts.
        method_of(request.method)
        if not isinstance(request.network, tuple):
            locate(request.network)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(held_folder(request.out))
            if request.transfer_from is not None:
                check_source(request.transfer_from)
            check_store(request.records)
            self._store = self._usable_store()
            stack.enter_context(self._interruption.listening())
            if request.metrics_port is not None:
                self._metrics = Metrics(request.metrics_port)
                stack.callback(self._metrics.close)
            self._announce()
            with contextlib.suppress(RunInterruptedError):
                await self._start(stack)
            yield self

    def _usable_store(self) -> Path | None:
        """The store of the request, made where it is missing. One that nobody has named need not be there."""
        place = self.request.store
        if place is None:
            return None
        try:
            check_shared(place.path)
            with shared_store(place.path):
                pass
            return place.path
        except RecordStoreError as error:
            self._go_without(error)
            return None

    def _go_without(self, error: RecordStoreError) -> None:
        """Raises the error of a store that was named."""
        if self.request.store_named:
            raise error
        _LOG.warning("the run goes without a store: %s", error.problem)

    async def _meet_team(self) -> None:
        """Where the store is the copy of a team's: the first meeting takes all that is on the server, in a thread
        beside what else begins."""
        place = self.request.store
        if self._store is not None and place is not None and place.server:
            try:
                self._team = await in_thread(met, place)
            except RecordStoreError as error:
                self._go_without(error)
                self._store = None

    def _announce(self, waits_for: str = "") -> None:
        """A first snapshot, once nothing is plainly wrong."""
        self._waits_for = waits_for
        limits, place = self.request.limits, self.request.store
        doing = waits_for or "importing the network, starting the devices"
        if self._store is not None and self._team is None and place is not None and place.server:
            doing += f", meeting the store {place.shown}"
        if self.on_progress is not None:
            begun = (time.monotonic() - self._started, limits.time_budget_secs, limits.trials)
            self.on_progress(Progress("starting", *begun, 0, 0, {}, 0.0, {}, {}, (), doing=doing))

    async def _announce_waiting(self) -> None:
        """What the run waits for before it can begin, and for how long by now."""
        while True:
            await asyncio.sleep(_PROGRESS_SECS)
            if self._waits_for:
                self._announce(self._waits_for)

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        request, unless_interrupted = self.request, self._interruption.unless
        # Its process loads TVM while Ray starts.
        lowering = stack.enter_context(contextlib.closing(LoweringProcess()))
        # In this thread and before any other starts: Ray forks its processes here, and they end with the thread that
        # forked them.
        cluster = stack.enter_context(connected(request.address))
        self._interruption.listen()  # again: Ray has put handlers of its own in the place of ours
        self._watching = asyncio.create_task(self._watch(cluster))
        stack.callback(self._watching.cancel)
        if request.fleet.all_of_a_key:
            fleet = await unless_interrupted(in_thread(with_boards, request.fleet))
            request = self.request = dataclasses.replace(request, fleet=fleet)
        starting = asyncio.ensure_future(
            RunHosts.start(
                cluster,
                request.fleet,
                self.run_id,
                request.out / "artifacts",
                share=share_of(request, self.run_id),
                tell=self._announce,
            )
        )
        stack.push_async_callback(_close_started, starting)
        async with beside(self._announce_waiting()):
            hosts, network, _ = await unless_interrupted(
                asyncio.gather(
                    starting,
                    in_thread(_read_network, request.network, request.inputs, request.trust_model),
                    self._meet_team(),
                )
            )
        if self._store is None:
            hosts.warm_up()
        from fleet_tune.runs.preparing import preparation  # loaded by now

        prepared = await unless_interrupted(
            in_thread(preparation.imported, network, hosts.fingerprints, request.fleet, lowering)
        )
        self._prepared = prepared
        if self._store is not None:
            self._others = await unless_interrupted(in_thread(StoreSubscription, self._store, self.run_id))
            self._found = await unless_interrupted(in_thread(preparation.found_in, self._store, prepared, request))
            self._prepared = prepared = preparation.with_imported(prepared, self._found)
        self._is_spared = preparation.needs_no_trial(prepared, request, self._found)
        if not self._is_spared:
            if self._store is not None:  # it might have had everything
                hosts.warm_up()
            coming = await self._describing(stack, hosts)
        origins = {} if request.fleet.datasets else prepared.origins
        meta = preparation.bind_store(request.records, prepared, self.run_id, origins)
        if self._found is not None:
            await unless_interrupted(in_thread(self._take, self._found, prepared))
        prepared = await unless_interrupted(in_thread(preparation.without_damaged, prepared, request.records))
        plan = SessionPlan(
            run_id=self.run_id,
            method=method_of(request.method),
            seed=request.seed,
            tasks=prepared.undescribed,
            limits=request.limits,
            rule=MEASURED_BY if request.collects else method_of(request.method).evaluator,
            settled={} if self._found is None else self._found.reasons,
        )
        if self._is_spared:
            self._prepared, self._last = await unless_interrupted(
                in_thread(preparation.without_trials, prepared, lowering, hosts, plan, request.records)
            )
            self._hosts = hosts
            return
        # The check is one thread's work of seconds: the actors start beside it, and wait for its end.
        session_starting = asyncio.ensure_future(TuningSession.start(hosts, plan, request.records, meta))
        stack.push_async_callback(_close_started, session_starting)
        self._prepared, session = await unless_interrupted(
            asyncio.gather(in_thread(preparation.check, prepared, lowering), session_starting)
        )
        self._start_seq = await session.last_seq()
        if self._interruption.came:
            raise RunInterruptedError
        session.begin()
        self._hosts, self._session = hosts, session
        self._joining = asyncio.create_task(self._join(session, coming))
        stack.callback(self._joining.cancel)
        self._welcoming = asyncio.create_task(self._welcome(session, stack))
        stack.callback(self._welcoming.cancel)
        if self.follows_fleet and (request.fleet.source is not None or not cluster.is_embedded):
            self._following = asyncio.create_task(self._follow_fleet(session, request.fleet))
            stack.callback(self._following.cancel)

    async def _describing(self, stack: contextlib.AsyncExitStack, hosts: RunHosts) -> ReadyTasks:
        """The tasks of the run as they become ready, which begins now."""
        from fleet_tune.runs.preparing import preparation

        request, prepared = self.request, self._prepared
        assert prepared is not None
        teaching: TransferPrior | None = None
        if not request.collects:
            teaching = await self._interruption.unless(in_thread(preparation.teaching_of, prepared, request))
        if teaching is not None:
            self._teachings = dict.fromkeys(prepared.prints, teaching)
        coming = preparation.ready_tasks(prepared, request.fleet, teaching, hosts.window, self._found)
        stack.callback(coming.close)
        coming.begin()
        return coming

    def _take(self, found: StoreLookup, prepared: Prepared) -> None:
        with RecordStore(self.request.records) as store:
            take(found, self.request.records, store, prepared.origins, prepared.device_ids)
        self._giving = StoreUploader(self.request.records, found.path)

    async def _share_regularly(self) -> None:
        """What is measured comes into the store that several runs share while others may look for it, and what others
        have given to it is not measured again."""
        giving, session = self._giving, self._session
        if giving is None or session is None:
            return
        # What was spent is known at the end, and looked at by runs that begin.
        steps: dict[str, Callable[[], object]] = {
            "what is measured does not come into the store": lambda: giving.give(with_efforts=False)
        }
        team = self._team
        if team is not None:
            steps["the server of the team's store is not met"] = lambda: team.meet(with_efforts=False)
        steps["what others have found is not taken from the store"] = self._take_new
        failing: set[str] = set()  # what people know of
        while True:
            await asyncio.sleep(_GIVE_EVERY_SECS)
            for what, step in steps.items():
                try:
                    await in_thread(step)
                    failing.discard(what)
                except Exception as error:
                    if what not in failing:
                        _LOG.warning("%s", what, exc_info=not isinstance(error, FleetTuneError))
                        session.notice(f"{what}, and is tried again every minute: {error_line(error)}", False)
                    failing.add(what)

    def _take_new(self) -> None:
        prepared, session = self._prepared, self._session
        if prepared is not None and session is not None and self._others is not None:
            tasks, origins = {entry.task.id for entry in prepared.undescribed}, prepared.origins
            with self._others.new(tasks, origins) as found:
                take(found, self.request.records, session.store_writer, origins, prepared.device_ids)

    def _give_all(self, giving: StoreUploader) -> None:
        """The end of a run: what it has spent, and what is not given yet. What fails is told, and the next run with
        this output folder does it."""
        last = self._last
        try:
            if last is not None and last.phase != "starting":
                note_efforts(self.request.records, self.run_id, self.request.limits, last.tasks, *self._tuned)
            giving.give(hurry=self._interruption.came)
            if self._team is not None:
                self._team.meet(hurry=self._interruption.came)
        except RecordStoreError as error:
            self._warn(f"what was measured is not in the store yet, and comes there later: {error.problem}")

    def _warn(self, text: str) -> None:
        if self._last is None:
            _LOG.warning("%s", text)
            return
        teller = CompileProgress(self._last.elapsed_secs, self._last.notices)
        teller.warn(text)
        self._last = dataclasses.replace(self._last, notices=teller.notices)

    async def _watch(self, cluster: Cluster) -> None:
        """End the run where its cluster is lost."""
        reason = await cluster.lost()
        next_step = "run the same command again: it resumes"
        self._interruption.fail(ClusterError(f"the Ray cluster of this run is lost: {reason}", next_step))

    async def _join(self, session: TuningSession, coming: ReadyTasks) -> None:
        """Tune the tasks as they become ready."""
        while (ready := await in_thread(next, coming, None)) is not None:
            if ready.entry.sketches:
                await session.start_task(ready.entry)
            else:
                await session.skip_task(ready.entry.task.id)
            self._ready.append(ready)

    async def _follow_fleet(self, session: TuningSession, fleet: FleetConfig) -> None:
        """Have the devices be those of the fleet file, and builders on the machines that are there, as long as nothing
        unexpected is in the way."""
        try:
            await FleetWatch(fleet).follow(session)
        except Exception as error:
            _LOG.exception("the fleet file is not followed any more")
            session.notice(f"the fleet file is not followed any more: {error_line(error)}", False)

    async def _welcome(self, session: TuningSession, stack: contextlib.AsyncExitStack) -> None:
        """Take in the device classes that come while the run goes on, one after the other. What cannot be taken in is
        told, and takes nothing from the others."""
        while True:
            device, fingerprint = await session.next_class()
            name = self._preparing = fingerprint.device_class.name
            try:
                await self._admit(session, stack, device, fingerprint)
            except UserError as error:
                await self._refuse(session, name, error.problem)
            except Exception as error:
                _LOG.exception("the network is not prepared for class %s", name)
                await self._refuse(session, name, error_line(error))
            self._preparing = ""

    async def _refuse(self, session: TuningSession, name: str, reason: str) -> None:
        try:
            await session.refuse_class(name, reason)
        except Exception as error:
            _LOG.exception("class %s is not refused", name)
            session.notice(f"class {name} does not join this run: {reason} ({error_line(error)})", False)

    async def _admit(
        self,
        session: TuningSession,
        stack: contextlib.AsyncExitStack,
        device: DeviceConfig,
        fingerprint: Fingerprint,
    ) -> None:
        from fleet_tune.runs.preparing import joining

        running, request = self._prepared, self.request
        assert running is not None
        known = next(iter(self._teachings.values()), None)
        with joining.lowering_beside(session.window) as lowering:
            about = (running, device, fingerprint, request, lowering, self._store, known)
            comes = await in_thread(joining.newcomer, *about)
        await in_thread(joining.introduce, comes, request, self.run_id, session.store_writer)
        settled = {} if comes.found is None else comes.found.reasons
        if not await session.add_class(comes.prepared.undescribed, settled):
            await session.refuse_class(self._preparing, "the tuning was over before the network was prepared for it")
            return
        self._prepared = running.with_classes(comes.prepared)
        if comes.teaching is not None:
            self._teachings |= dict.fromkeys(comes.prepared.prints, comes.teaching)
        if comes.found is not None:
            self._found = comes.found if self._found is None else self._found.with_class(comes.found)
        self._joining_late.append(asyncio.create_task(self._join_late(session, stack, comes)))
        stack.callback(self._joining_late[-1].cancel)

    async def _join_late(self, session: TuningSession, stack: contextlib.AsyncExitStack, comes: Newcomer) -> None:
        """:meth:`_join`, where the rest of the run goes on whatever happens: what is not described is left out."""
        from fleet_tune.runs.preparing import preparation
        from fleet_tune.runs.preparing.ready_tasks import ReadyTask

        fleet, tasks = self.request.fleet, comes.prepared.undescribed
        try:
            coming = preparation.ready_tasks(comes.prepared, fleet, comes.teaching, session.window, comes.found)
            stack.callback(coming.close)
            coming.begin()
            await self._join(session, coming)
        except Exception as error:
            name = tasks[0].task.device_class.name
            _LOG.exception("not all tasks of class %s are described", name)
            session.notice(f"tasks of class {name} are left out of this run: {error_line(error)}", False)
            done = {ready.entry.task.id for ready in self._ready}
            for entry in tasks:
                task = entry.task
                if task.id not in done:
                    missing = SkippedPart("task", task.workload.name, task.device_class.name, "", error_line(error))
                    self._ready.append(ReadyTask(entry, (missing,)))
                    await session.skip_task(task.id)

    async def records(self, traces: bool = False) -> AsyncIterator[Record]:
        """The records of this run as they become durable, until the budget is used or a signal comes."""
        if self._hosts is None:
            return
        if self._session is None:  # no task needs a trial
            self._tell_last()
            return
        async with beside(self._report()), beside(self._share_regularly()):
            records = aiter(self._session.records(self._start_seq, traces))
            while True:
                try:
                    record = await self._interruption.unless_failed(anext(records))
                except StopAsyncIteration:
                    break
                if self._joining is not None and self._joining.done():
                    self._joining.result()  # a run that has no way to describe its tasks must not wait for them
                if record is not None:
                    if self._metrics is not None:
                        self._metrics.observe(record)
                    yield record
        await self._report_once()

    @property
    def session(self) -> TuningSession | None:
        """Who tunes; None before that begins and once it is over."""
        return self._session

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal came."""
        return self._interruption.came

    @property
    def prepared(self) -> Prepared | None:
        """The imported network with its tasks, once the run is finished, which are not described where none needed a
        trial; None where a signal came before all of the others were."""
        if self._prepared is None or self._is_spared:
            return self._prepared
        return self._prepared if len(self._ready) == len(self._prepared.undescribed) else None

    async def finish(self) -> TuneResult:
        """Compile and measure the tuned network of every device class, unless the run was interrupted, collects, or
        has recorded devices alone."""
        networks: tuple[NetworkResult, ...] = ()
        for each in (self._welcoming, self._following):
            if each is not None:
                each.cancel()
        if self._preparing:
            self._warn(f"class {self._preparing} is none of this run, which was over before the network was prepared")
        await self._all_described()
        if self._hosts is not None and self._prepared is not None:
            hosts, session = self._hosts, self._session
            self._hosts = self._session = None
            members = hosts.members if session is None else session.members
            self._prepared = dataclasses.replace(self._prepared, devices=members)
            await (hosts if session is None else session).close()
            if self._last is not None:
                # Now: first choices that are measured to compile a task are no search of it.
                tried = await in_thread(tried_in, self.request.records, self._start_seq)
                self._tuned = self._last.elapsed_secs, self._last.new_trials, frozenset(tried)
            if self._watching is not None:
                self._watching.cancel()  # what follows needs the cluster for its turns at most
            # What a dataset answers for was never built here: there is nothing to compile.
            tuned = not self.request.collects and not self.request.fleet.datasets
            if tuned and not self._interruption.came:
                self._show("compiling")
                networks = await self._compiled(self._prepared, hosts)
            if self._giving is not None:
                await in_thread(self._give_all, self._giving)
        last = self._last
        tasks = self._prepared.tasks if self._prepared else ()
        return TuneResult(
            network=self._prepared.network.name if self._prepared else str(self.request.network),
            out=self.request.out,
            tasks=last.tasks if last else (),
            outcomes=last.outcomes if last else {},
            new_trials=last.new_trials if last else 0,
            elapsed_secs=time.monotonic() - self._started,
            interrupted=self._interruption.came,
            networks=networks,
            signal_number=self._interruption.signal_number,
            transferred=self._transferred(tasks),
            left_out=self._prepared.left_out if self._prepared else (),
            inputs=self._prepared.network.inputs_from if self._prepared else "",
            notices=last.notices if last else (),
            device_time=last.device_time_whole if last else {},
            store=None if self._found is None else self._found.summary,
        )

    def _transferred(self, tasks: Sequence[SearchTask]) -> Transferred | None:
        """What was learned before the first trial, from what was there first."""
        teaching = next(iter(self._teachings.values()), None)
        others = tasks if self._found is None else self._found.without_prior(tasks)
        with_prior = [entry for entry in others if self._teachings.get(entry.task.device_class.name) is teaching]
        return None if teaching is None or not with_prior else teaching.summary(with_prior)

    async def _all_described(self) -> None:
        """Nothing is compiled without a task that may still come; a signal ends the wait."""
        if self._joining is not None and not self._interruption.came:
            joining = [self._joining, *self._joining_late]
            if not all(each.done() for each in joining):
                self._show("describing")
            with contextlib.suppress(RunInterruptedError):
                await self._interruption.unless(asyncio.gather(*joining))
        if self._prepared is not None and not self._is_spared:
            self._prepared = self._prepared.with_ready(self._ready)

    async def _compiled(self, prepared: Prepared, hosts: RunHosts) -> tuple[NetworkResult, ...]:
        from fleet_tune.runs.preparing import preparation

        def compiled(names: Collection[str]) -> tuple[NetworkResult, ...]:
            with hosts.holding(names, teller.tell, lambda: cancellation.came):
                return preparation.compile_tuned(prepared, self.request, self.run_id, teller, cancellation)

        teller = (
            CompileProgress(self._last.elapsed_secs, self._last.notices)
            if self._last is not None
            else CompileProgress()
        )
        cancellation = Cancellation()
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(RunInterruptedError))
            stack.callback(lambda: self._show("compiling", teller))
            # However it ends: a thread that nobody waits for publishes nothing in a folder that is others' by then.
            stack.callback(cancellation.cancel)
            async with beside(self._report_compiling(teller)):
                names = preparation.compiled_on(prepared, self.request.records)
                networks = await self._interruption.unless(in_thread(compiled, names))
            if self._last is not None:
                self._last = preparation.with_what_was_found(self._last, prepared, self.request.records)
            return networks
        return ()

    async def _report_compiling(self, teller: CompileProgress) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECS)
            self._show("compiling", teller)

    def _show(self, phase: str, teller: CompileProgress | None = None) -> None:
        """A last snapshot with another phase, and what is told of it: what happens after the tuning has no actors to
        ask."""
        if self._last is not None:
            self._last = dataclasses.replace(self._last, phase=phase)
            if teller is not None:
                self._last = dataclasses.replace(
                    self._last, elapsed_secs=teller.elapsed_secs, doing=teller.doing, notices=teller.notices
                )
            if self.on_progress is not None:
                self.on_progress(self._last)

    async def _report(self) -> None:
        while True:
            await self._report_once()
            await asyncio.sleep(_PROGRESS_SECS)

    async def _report_once(self) -> None:
        assert self._session is not None
        with contextlib.suppress(FleetTuneError):  # a scheduler that is gone tells so through its records
            self._last = await self._session.progress()
        self._tell_last()

    def _tell_last(self) -> None:
        if self._last is None:
            return
        if self._metrics is not None:
            self._metrics.update(self._last)
        if self.on_progress is not None:
            self.on_progress(self._last)

    def _stop(self) -> None:
        """A signal came."""
        if self._session is not None:
            self._stopping = asyncio.ensure_future(self._session.stop())
