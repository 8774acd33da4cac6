"""One tuning run from the model to the compiled network: what ``fleet_tune.api`` wraps."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from actors.cluster import connected
from actors.session import Session, SessionPlan
from devices.networks.frontend import locate
from fleet_tune.config.options import Options, prepare_folder
from fleet_tune.domain import Record, StopRule
from fleet_tune.errors import FleetTuneError
from fleet_tune.records.dataset import MEASURED_BY
from fleet_tune.records.sources import check_source
from fleet_tune.records.store import RecordReader
from fleet_tune.results import NetworkResult, Progress, TuneResult
from fleet_tune.runs.metrics import Metrics
from policies.search.methods import method_named

if TYPE_CHECKING:
    from fleet_tune.runs.preparation import Prepared

_PROGRESS_SECS = 0.5
_T = TypeVar("_T")


def preparation() -> ModuleType:
    """The module :mod:`fleet_tune.runs.preparation`, loaded when first needed."""
    from fleet_tune.runs import preparation as module

    return module


def _read_model(spec: Any) -> Any:
    return preparation().read_model(spec)


class Interrupted(Exception):
    """A signal came before the tuning began."""


@dataclass
class Run:
    """One run. ``async with run.opened()``, then iterate :meth:`records`, then :meth:`finish`."""

    options: Options
    on_progress: Callable[[Progress], None] | None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _started: float = field(default_factory=time.monotonic)
    _session: Session | None = None
    _prepared: Prepared | None = None
    _metrics: Metrics | None = None
    _last: Progress | None = None
    _start_seq: int = 0
    _signal: int = 0
    _stopping: asyncio.Future[None] | None = None
    _previous: dict[int, Any] = field(default_factory=dict)  # signal handlers to restore

    def __post_init__(self) -> None:
        self._interrupt = asyncio.Event()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Run]:
        """Import the model and start the actors; on leaving, everything is closed. A signal on the way leaves a run
        without records."""
        options = self.options
        # What is plainly wrong is told before anything starts.
        method_named(options.method)
        if not isinstance(options.model, tuple):
            locate(options.model)
        prepare_folder(options.out)
        if options.transfer_from is not None:
            check_source(options.transfer_from)
        if options.records.exists():
            RecordReader(options.records).close()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._signals())
            if options.metrics_port is not None:
                self._metrics = Metrics(options.metrics_port)
                stack.callback(self._metrics.close)
            with contextlib.suppress(Interrupted):
                await self._start(stack)
            yield self

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        options = self.options
        # In this thread and before any other starts: Ray forks its processes here, and they end with the thread that
        # forked them.
        cluster = stack.enter_context(connected(options.address))
        self._listen()  # again: Ray has put handlers of its own in the place of ours
        session = Session(cluster, options.fleet, self.run_id, options.out.absolute() / "artifacts")
        stack.push_async_callback(session.close)
        by_device, model = await self._unless_interrupted(
            asyncio.gather(session.start_hosts(), in_thread(_read_model, options.model))
        )
        prepared: Prepared = await self._unless_interrupted(
            in_thread(preparation().prepare, model, by_device, options.fleet)
        )
        if options.per_task is None:
            prepared = await self._unless_interrupted(in_thread(preparation().warmed, prepared, options))
        self._prepared = prepared
        meta = preparation().bind_store(options.records, prepared)
        plan = SessionPlan(
            self.run_id,
            options.method,
            options.seed,
            prepared.tasks,
            options.trials,
            options.time_budget_secs,
            options.per_task,
            StopRule() if options.per_task is None else MEASURED_BY,
        )
        classes = {name: fingerprint.device_class.name for name, fingerprint in by_device.items()}
        # The check is one thread's work of seconds: the actors start beside it, and wait for its end.
        await self._unless_interrupted(
            asyncio.gather(
                in_thread(preparation().check, self._prepared),
                session.start_tuning(plan, options.records, meta, classes),
            )
        )
        self._start_seq = await session.last_seq()
        if self._interrupt.is_set():
            raise Interrupted
        session.begin()
        self._session = session

    async def records(self) -> AsyncIterator[Record]:
        """The records of this run as they become durable, until the budget is used or a signal comes."""
        if self._session is None:
            return
        reporting = asyncio.create_task(self._report())
        try:
            async for record in self._session.records(self._start_seq):
                if record is not None:
                    if self._metrics is not None:
                        self._metrics.observe(record)
                    yield record
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting
        await self._report_once()

    @property
    def prepared(self) -> Prepared | None:
        """The imported model; None where a signal came before."""
        return self._prepared

    async def finish(self) -> TuneResult:
        """Compile and measure the tuned network of every device class, unless the run was interrupted, collects, or
        replays a dataset."""
        networks: tuple[NetworkResult, ...] = ()
        if self._session is not None and self._prepared is not None:
            session, self._session = self._session, None
            await session.close()
            # What a dataset answers for was never built here: there is nothing to compile.
            tuned = self.options.per_task is None and not self.options.fleet.datasets
            if tuned and not self._interrupt.is_set():
                self._show("compiling")
                with contextlib.suppress(Interrupted):
                    networks = await self._unless_interrupted(
                        in_thread(preparation().compile_tuned, self._prepared, self.options)
                    )
        last = self._last
        return TuneResult(
            model=self._prepared.model.name if self._prepared else str(self.options.model),
            out=self.options.out,
            tasks=last.tasks if last else (),
            outcomes=last.outcomes if last else {},
            new_trials=last.new_trials if last else 0,
            elapsed_secs=time.monotonic() - self._started,
            interrupted=self._interrupt.is_set(),
            networks=networks,
            signal_number=self._signal,
            transferred=self._prepared.transferred if self._prepared else None,
        )

    def _show(self, phase: str) -> None:
        """A last snapshot with another phase: what happens after the tuning has no actors to ask."""
        if self._last is not None:
            self._last = dataclasses.replace(self._last, phase=phase)
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
        if self._last is None:
            return
        if self._metrics is not None:
            self._metrics.update(self._last)
        if self.on_progress is not None:
            self.on_progress(self._last)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the run in good order; a second one acts as usual."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._listen()
        try:
            yield
        finally:
            self._restore()

    def _listen(self) -> None:
        for number in self._previous:
            asyncio.get_running_loop().add_signal_handler(number, self._interrupted, number)

    def _restore(self) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, handler)

    def _interrupted(self, number: int) -> None:
        self._restore()
        self._signal = number
        self._interrupt.set()
        if self._session is not None:
            self._stopping = asyncio.ensure_future(self._session.stop())

    async def _unless_interrupted(self, work: Awaitable[_T]) -> _T:
        """The result of ``work``, or :class:`Interrupted` at once where a signal comes first."""
        working = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupt.wait())
        await asyncio.wait([working, interrupted], return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if working.done():
            return working.result()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # it ends by our cancelling, however it says so
            await working
        raise Interrupted


async def in_thread(function: Callable[..., _T], *args: Any) -> _T:
    """Run a blocking function in a daemon thread, so that an interrupted run need not wait for its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: _T | None = None
        failure: BaseException | None = None
        try:
            result = function(*args)
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, daemon=True, name=function.__name__).start()
    return await future
