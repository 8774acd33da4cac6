"""The Python API: ``tune``, ``stream``, ``plan``, ``collect``, ``compile_network``, ``load``.

``run_tuning``, ``run_collection`` and ``make_plan`` do the same for a caller that has a
:class:`fleet_tune.base.config.request.RunRequest` already, such as the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from devices.networks.libraries import load_libraries
from fleet_tune.base.config import values
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.config.request import RunRequest, run_request
from fleet_tune.base.config.tune_options import PlanOptions, TuneOptions, accepts
from fleet_tune.base.domain import Record
from fleet_tune.base.home import provide_home
from fleet_tune.base.results import Collected, Plan, Progress, TuneResult

if TYPE_CHECKING:
    from devices.networks.compiled.network_folder import CompiledNetwork

__all__ = [
    "Collected",
    "Plan",
    "Progress",
    "Record",
    "TuneResult",
    "collect",
    "compile_network",
    "load",
    "make_plan",
    "plan",
    "run_collection",
    "run_tuning",
    "stream",
    "tune",
]
_T = TypeVar("_T")


@accepts(TuneOptions)
def tune(
    network: Any,
    *,
    out: Path | str,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Unpack[TuneOptions],
) -> TuneResult:
    """Tune a network and leave the compiled result in ``out``; the same call with the same ``out`` resumes.

    ``network``: ``"file.py:function"``, a path of an ``.onnx`` or ``.pt2`` file, or ``(torch module, example inputs)``,
    with torch.export's ``dynamic_shapes`` as a third element if it has dynamic dimensions.
    ``on_progress`` is called about twice a second.

    SIGINT and SIGTERM end the tuning early: the result says ``interrupted`` and everything measured is stored.
    Raises :class:`fleet_tune.base.errors.UserError` for errors that the caller can correct.
    """
    return run_tuning(run_request(network, out=out, **options), on_progress)


@accepts(TuneOptions)
async def stream(network: Any, *, out: Path | str, **options: Unpack[TuneOptions]) -> AsyncIterator[Record]:
    """Tune as :func:`tune` does and yield each new record as soon as it is durable.

    When the iteration ends by itself, the compiled network is in ``out``. Leaving it early stops the tuning and keeps
    the records.
    """
    _provide_home()
    from fleet_tune.runs.run import run

    request = run_request(network, out=out, **options)
    records: asyncio.Queue[Record] = asyncio.Queue(maxsize=1)
    with _environment_kept():
        running = asyncio.ensure_future(run(request, on_record=records.put, traces=True))
        record: asyncio.Future[Record] | None = None
        try:
            while not (running.done() and records.empty()):
                record = asyncio.ensure_future(records.get())
                await asyncio.wait([record, running], return_when=asyncio.FIRST_COMPLETED)
                if record.done():
                    yield record.result()
                else:
                    record.cancel()
            running.result()
        finally:
            for each in (record, running):
                if each is not None:
                    each.cancel()
            await asyncio.wait([running])


@accepts(PlanOptions)
def plan(network: Any, **options: Unpack[PlanOptions]) -> Plan:
    """Return the plan of :func:`tune`: the tasks with their weights and sketches, and the knowledge from which the
    search would start.

    Starts no cluster, trains no model and measures nothing.
    """
    return make_plan(run_request(network, out=".", **options))


def collect(
    network: Any,
    *,
    task_trials: int,
    out: Path | str,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    shapes: str | None = None,
    shapes_weights: Path | str | None = None,
    trust_model: bool = False,
    precision: str | None = None,
    max_error: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collected:
    """Measure ``task_trials`` random candidates of every task of ``network``, and write them to ``out/dataset.ftd``.
    Slow candidates are measured to the end too.

    The trials of earlier runs in ``out`` count; the other arguments are those of :func:`tune`. If SIGINT or SIGTERM
    ends the collection early, the dataset is still written, unless some tasks are not described yet. Raises
    :class:`fleet_tune.base.errors.UserError`.
    """
    request = run_request(
        network,
        out=out,
        method="random",
        task_trials=task_trials,
        time_budget_secs=time_budget_secs,
        fleet=fleet,
        address=address,
        seed=seed,
        collects=True,
        shapes=shapes,
        shapes_weights=shapes_weights,
        trust_model=trust_model,
        precision=precision,
        max_error=max_error,
    )
    return run_collection(request, on_progress)


def compile_network(
    network: Any,
    *,
    records: Path | str,
    out: Path | str,
    fleet: Path | str | FleetConfig | None = None,
    inputs: Path | str | None = None,
    shapes: str | None = None,
    shapes_weights: Path | str | None = None,
    trust_model: bool = False,
    precision: str | None = None,
    max_error: float | None = None,
    library: str | None = None,
) -> TuneResult:
    """Compile ``network`` from the best records of a database, without tuning. ``inputs``, ``shapes``,
    ``shapes_weights``, ``trust_model``, ``precision``, ``max_error`` and ``library``: as for :func:`tune`."""
    # Errors in the options are reported before heavy modules are loaded.
    request = run_request(
        network,
        out=out,
        fleet=fleet,
        inputs=inputs,
        shapes=shapes,
        shapes_weights=shapes_weights,
        trust_model=trust_model,
        precision=precision,
        max_error=max_error,
        library=library,
    )
    store = values.path("a record database", records, "--records")
    _provide_home()
    load_libraries()
    from fleet_tune.runs.publishing.from_records import compile_from_records

    with _environment_kept():
        return compile_from_records(request, store)


def load(folder: Path | str) -> CompiledNetwork:
    """Return the compiled network in ``folder``: a callable on numpy arrays and torch tensors."""
    _provide_home(is_written=False)
    from devices.networks.compiled import network_folder

    return network_folder.load(values.path("a compiled network", folder, "the output folder of a run"))


def run_tuning(request: RunRequest, on_progress: Callable[[Progress], None] | None = None) -> TuneResult:
    """:func:`tune` for a request."""
    values.callback("the progress callback", on_progress, "on_progress")
    _provide_home()
    from fleet_tune.runs.run import run

    async def result() -> TuneResult:
        return (await run(request, on_progress=on_progress)).result

    return _run(result)


def run_collection(request: RunRequest, on_progress: Callable[[Progress], None] | None = None) -> Collected:
    """:func:`collect` for a request that ``collects``."""
    values.callback("the progress callback", on_progress, "on_progress")
    _provide_home()
    from fleet_tune.training import collection

    return _run(lambda: collection.collect(request, on_progress))


def make_plan(request: RunRequest) -> Plan:
    """:func:`plan` for a request."""
    _provide_home()
    load_libraries()
    from fleet_tune.runs.preparing import planning

    with _environment_kept():
        return planning.plan(request)


def _provide_home(is_written: bool = True) -> None:
    """Warn if another folder replaces the user's home."""
    if told := provide_home(is_written):
        warnings.warn(told, stacklevel=3)


def _run(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine to its end, also from inside a running event loop (a notebook)."""
    with _environment_kept():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(main())
        from fleet_tune.runs.interruption import run_in_thread

        return run_in_thread(main)


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore ``TVM_BIND_THREADS``, which a run changes in the caller's process: the threads of networks that are
    loaded later are bound to cores as in any other process."""
    name = "TVM_BIND_THREADS"
    before = os.environ.get(name)
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
