"""One tuning run from the model to the compiled network: what ``fleet_tune.api`` wraps."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from actors.cluster import connected
from actors.device import opened_device
from actors.searcher import SearchTask
from actors.session import Session, SessionPlan, is_local
from devices.models import Model, load_model
from devices.networks import Network, check_network, import_network
from devices.spaces import DesignSpace
from fleet_tune.compilation import build_networks, device_classes_of, task_results
from fleet_tune.config import FleetConfig
from fleet_tune.domain import Fingerprint, Record
from fleet_tune.errors import DiskFullError, OutputFolderError
from fleet_tune.metrics import Metrics
from fleet_tune.records import RecordReader, RecordStore
from fleet_tune.results import NetworkResult, Plan, Progress, TaskProgress, TuneResult
from policies.presets import preset

DEFAULT_TIME_BUDGET_SECS = 600.0
_PROGRESS_SECS = 0.5
# Below this the results of a small network do not fit either: better to say so before hours of tuning.
_MIN_FREE_BYTES = 64 * 1024 * 1024
_T = TypeVar("_T")


@dataclass(frozen=True)
class Options:
    """The arguments of :func:`fleet_tune.api.tune`, resolved."""

    model: Any
    out: Path
    method: str
    trials: int | None
    time_budget_secs: float | None
    fleet: FleetConfig
    address: str | None
    seed: int
    metrics_port: int | None

    @property
    def records(self) -> Path:
        return self.out / "records.db"


@dataclass(frozen=True)
class Prepared:
    """A model imported for every device class of the fleet."""

    model: Model
    prints: Mapping[str, Fingerprint]  # by device class name
    networks: Mapping[str, Network]  # by device class name
    here: frozenset[str]  # classes that this machine belongs to
    tasks: tuple[SearchTask, ...]

    @property
    def rules(self) -> dict[str, str]:
        """The rule that made each sketch, by sketch id."""
        return {sketch.id: sketch.rule for entry in self.tasks for sketch in entry.sketches}


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

    def __post_init__(self) -> None:
        self._interrupt = asyncio.Event()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Run]:
        """Import the model and start the actors; on leaving, everything is closed. A signal on the way leaves a run
        without records."""
        options = self.options
        preset(options.method)
        prepare_folder(options.out)
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
        session = Session(cluster, options.fleet, self.run_id)
        stack.push_async_callback(session.close)
        by_device, model = await self._unless_interrupted(
            asyncio.gather(session.start_hosts(), in_thread(load_model, options.model))
        )
        self._prepared = await self._unless_interrupted(in_thread(prepare, model, by_device, options.fleet))
        meta = bind_store(options.records, self._prepared)
        plan = SessionPlan(
            self.run_id,
            options.method,
            options.seed,
            self._prepared.tasks,
            options.trials,
            options.time_budget_secs,
        )
        classes = {name: fingerprint.device_class.name for name, fingerprint in by_device.items()}
        await self._unless_interrupted(session.start_tuning(plan, options.records, meta, classes))
        self._start_seq = await session.last_seq()
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

    async def finish(self) -> TuneResult:
        """Compile and measure the tuned network of every device class, unless the run was interrupted."""
        networks: tuple[NetworkResult, ...] = ()
        if self._session is not None and self._prepared is not None:
            session, self._session = self._session, None
            await session.close()
            if not self._interrupt.is_set():
                self._show("compiling")
                with contextlib.suppress(Interrupted):
                    networks = await self._unless_interrupted(
                        in_thread(
                            build_networks,
                            self._prepared.model,
                            self._prepared.networks,
                            self._prepared.prints,
                            self._prepared.rules,
                            self._prepared.here,
                            self.options.records,
                            self.options.out,
                        )
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
        self._last = await self._session.progress()
        if self._metrics is not None:
            self._metrics.update(self._last)
        if self.on_progress is not None:
            self.on_progress(self._last)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the run in good order; a second one acts as usual."""
        loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in previous.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

        def interrupt(number: signal.Signals) -> None:
            restore()
            self._signal = number
            self._interrupt.set()
            if self._session is not None:
                self._stopping = asyncio.ensure_future(self._session.stop())

        for number in previous:
            loop.add_signal_handler(number, interrupt, number)
        try:
            yield
        finally:
            if not self._interrupt.is_set():
                restore()

    async def _unless_interrupted(self, work: Awaitable[_T]) -> _T:
        """The result of ``work``, or :class:`Interrupted` at once where a signal comes first."""
        working = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupt.wait())
        await asyncio.wait([working, interrupted], return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if working.done():
            return working.result()
        working.cancel()
        raise Interrupted


def prepare(model: Model, by_device: Mapping[str, Fingerprint], fleet: FleetConfig) -> Prepared:
    """Import ``model`` for every device class, check the imported network, and make the sketches of every task."""
    # This process also times the model's framework, whose threads TVM's must not push from their cores.
    os.environ["TVM_BIND_THREADS"] = "0"
    prints = device_classes_of(by_device)
    here = frozenset(by_device[device.name].device_class.name for device in fleet.devices if is_local(device))
    networks = {name: import_network(model, fingerprint.device_class) for name, fingerprint in prints.items()}
    tasks = []
    for name, network in networks.items():
        check_network(network, model)
        for task in network.tasks:
            tasks.append(SearchTask(task, DesignSpace(task).sketches, prints[name].abstraction))
    return Prepared(model, prints, networks, here, tuple(tasks))


def probe_fleet(fleet: FleetConfig) -> dict[str, Fingerprint]:
    """The fingerprints of all devices, asked without a cluster. Raises DeviceUnreachableError."""
    prints = {}
    for config in fleet.devices:
        with opened_device(config) as device:
            prints[config.name] = device.fingerprint()
    return prints


def plan(options: Options) -> Plan:
    """The plan of a run: tasks, weights and sketches for every device class."""
    preset(options.method)
    by_device = probe_fleet(options.fleet)
    prepared = prepare(load_model(options.model), by_device, options.fleet)
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
        model=prepared.model.name,
        method=options.method,
        devices={name: fingerprint.device_class.name for name, fingerprint in by_device.items()},
        tasks=tasks,
        trial_limit=options.trials,
        time_budget_secs=options.time_budget_secs,
    )


def compile_from_records(options: Options, records: Path) -> TuneResult:
    """Compile the network of ``options.model`` from the records of any store, without tuning."""
    started = time.monotonic()
    prepare_folder(options.out)
    with RecordReader(records) as reader:
        outcomes = {outcome.value: count for outcome, count in reader.counts().items()}
    prepared = prepare(load_model(options.model), probe_fleet(options.fleet), options.fleet)
    networks = build_networks(
        prepared.model, prepared.networks, prepared.prints, prepared.rules, prepared.here, records, options.out
    )
    return TuneResult(
        model=prepared.model.name,
        out=options.out,
        tasks=task_results((entry.task for entry in prepared.tasks), prepared.rules, records),
        outcomes=outcomes,
        new_trials=0,
        elapsed_secs=time.monotonic() - started,
        interrupted=False,
        networks=networks,
    )


def bind_store(path: Path, prepared: Prepared) -> dict[str, str]:
    """Tie the record store to this network and these targets; :class:`OutputFolderError` where it belongs to others."""
    targets = {name: fingerprint.device_class.target for name, fingerprint in prepared.prints.items()}
    meta = {
        "network": prepared.model.fingerprint,
        "model": prepared.model.name,
        "targets": json.dumps(targets, sort_keys=True),
    }
    with RecordStore(path) as store:
        store.bind(meta)
    return meta


def prepare_folder(out: Path) -> None:
    """Make the output folder; an error now rather than after the tuning."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputFolderError(f"{out} is a file, not a folder", "choose another folder with --out") from None
    except OSError as error:
        raise OutputFolderError(
            f"the output folder {out} cannot be made: {error.strerror}", "choose another folder with --out"
        ) from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise OutputFolderError(f"the output folder {out} is not writable", "choose another folder with --out")
    free = shutil.disk_usage(out).free
    if free < _MIN_FREE_BYTES:
        raise DiskFullError(
            f"only {free // 2**20} MiB are free where {out} is",
            f"free at least {_MIN_FREE_BYTES // 2**20} MiB, or choose another folder with --out",
        )


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
