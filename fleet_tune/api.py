"""The Python API: ``tune``, ``stream``, ``plan``, ``collect``, ``compile_network``, ``load``.

``run_tuning``, ``run_collection`` and ``make_plan`` are the same for whoever has a
:class:`fleet_tune.base.config.request.RunRequest` already: the command line.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fleet_tune.base.config import values
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.config.request import RunRequest, SearchMethod, run_request
from fleet_tune.base.domain import Record
from fleet_tune.base.results import Collected, Plan, Progress, TuneResult

if TYPE_CHECKING:
    from devices.networks.network_folder import CompiledNetwork

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


def tune(
    network: Any,
    *,
    out: Path | str,
    method: str | SearchMethod = "fleet",
    trials: int | None = None,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    metrics_port: int | None = None,
    transfer_from: Path | str | None = None,
    pretrained: bool = True,
    inputs: Path | str | None = None,
    trust_model: bool = False,
    store: Path | str | None = None,
    priority: int | None = None,
    weight: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> TuneResult:
    """Tune a network and leave the compiled result in ``out``; the same call with the same ``out`` resumes.

    ``method``: the name of a search method, ``"my_search.py:METHOD"`` for one in a file, or a
    :class:`policies.search.methods.Method`. ``network``: ``"file.py:function"``, a path of an ``.onnx`` or ``.pt2``
    file, or ``(torch module, example inputs)``. ``trials`` counts those of earlier runs in ``out`` too;
    ``time_budget_secs`` is the tuning time of this call; with neither, ten minutes. ``fleet``: a fleet file, None for
    this machine's CPU. ``address``: an existing Ray cluster, None for an embedded one. ``on_progress`` is called about
    twice a second.

    ``transfer_from``: what the search learns from before its first trial: a record database, a dataset, the folder of a
    MetaSchedule database, or a cost model's file. Without it our own method starts from the cost model that comes with
    fleet-tune where that applies (x86 CPUs), and a task of which the store has nothing from the records that come with
    it, unless ``pretrained`` is false.

    ``inputs``: an ``.npz`` file with the inputs on which the network is compared with its framework and timed, by name
    or in order. Without it they are the network's own examples; an ``.onnx`` file has none: they are made up, in the
    ranges that its graph allows. ``trust_model``: a ``.pt2`` file may hold code, which runs when it is read; without
    this such a file is refused. A ``.py`` file always runs.

    ``store``: the record database that several runs share, a path or a team's ``postgresql://...``: what it has of the
    network's tasks is not measured again, and what this run measures goes there too. None for that of this user, ``""``
    for none.

    ``priority``, ``weight``: of this run among those of the cluster at ``address`` that use the same devices: the
    highest priority goes first (default 0), those of one priority have shares by weight (default 1).

    SIGINT and SIGTERM end the tuning early: the result says ``interrupted`` and everything measured is stored.
    Raises :class:`fleet_tune.base.errors.UserError` for what the caller can mend.
    """
    request = run_request(
        network,
        out=out,
        method=method,
        trials=trials,
        time_budget_secs=time_budget_secs,
        fleet=fleet,
        address=address,
        seed=seed,
        metrics_port=metrics_port,
        transfer_from=transfer_from,
        pretrained=pretrained,
        inputs=inputs,
        trust_model=trust_model,
        store=store,
        priority=priority,
        weight=weight,
    )
    return run_tuning(request, on_progress)


async def stream(
    network: Any,
    *,
    out: Path | str,
    method: str | SearchMethod = "fleet",
    trials: int | None = None,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    metrics_port: int | None = None,
    transfer_from: Path | str | None = None,
    pretrained: bool = True,
    inputs: Path | str | None = None,
    trust_model: bool = False,
    store: Path | str | None = None,
    priority: int | None = None,
    weight: float | None = None,
) -> AsyncIterator[Record]:
    """Tune as :func:`tune` does and yield each new record as soon as it is durable. When the iteration ends by itself,
    the compiled network is in ``out``; leaving it early stops the tuning and keeps the records."""
    from fleet_tune.runs.run import Run

    request = run_request(
        network,
        out=out,
        method=method,
        trials=trials,
        time_budget_secs=time_budget_secs,
        fleet=fleet,
        address=address,
        seed=seed,
        metrics_port=metrics_port,
        transfer_from=transfer_from,
        pretrained=pretrained,
        inputs=inputs,
        trust_model=trust_model,
        store=store,
        priority=priority,
        weight=weight,
    )
    async with Run(request, None).opened() as run:
        async for record in run.records(traces=True):
            yield record
        await run.finish()


def plan(
    network: Any,
    *,
    method: str | SearchMethod = "fleet",
    trials: int | None = None,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    transfer_from: Path | str | None = None,
    pretrained: bool = True,
    inputs: Path | str | None = None,
    trust_model: bool = False,
    store: Path | str | None = None,
) -> Plan:
    """What :func:`tune` would do: the tasks with weights and sketches, and what the search would start from. Starts no
    cluster, trains and measures nothing."""
    request = run_request(
        network,
        out=".",
        method=method,
        trials=trials,
        time_budget_secs=time_budget_secs,
        fleet=fleet,
        transfer_from=transfer_from,
        pretrained=pretrained,
        inputs=inputs,
        trust_model=trust_model,
        store=store,
    )
    return make_plan(request)


def collect(
    network: Any,
    *,
    task_trials: int,
    out: Path | str,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    trust_model: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collected:
    """Measure ``task_trials`` random candidates of every task of ``network``, each to its end, into
    ``out/dataset.ftd``.

    The trials of earlier runs in ``out`` count; the other arguments are those of :func:`tune`. The dataset is written
    also where SIGINT or SIGTERM end the collecting early, once all tasks are described. Raises
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
        trust_model=trust_model,
    )
    return run_collection(request, on_progress)


def compile_network(
    network: Any,
    *,
    records: Path | str,
    out: Path | str,
    fleet: Path | str | FleetConfig | None = None,
    inputs: Path | str | None = None,
    trust_model: bool = False,
) -> TuneResult:
    """Compile ``network`` from the best records of a database, without tuning. ``inputs`` and
    ``trust_model``: as for :func:`tune`."""
    # What is wrong with these is told before anything heavy is loaded.
    request = run_request(network, out=out, fleet=fleet, inputs=inputs, trust_model=trust_model)
    store = values.path("a record database", records, "--records")
    from fleet_tune.runs.preparing.preparation import compile_from_records

    return compile_from_records(network, request.fleet, store, request.out, request.inputs, request.trust_model)


def load(folder: Path | str) -> CompiledNetwork:
    """The compiled network in ``folder``: a callable on numpy arrays and torch tensors."""
    from devices.networks import network_folder

    return network_folder.load(values.path("a compiled network", folder, "the output folder of a run"))


def run_tuning(request: RunRequest, on_progress: Callable[[Progress], None] | None = None) -> TuneResult:
    """:func:`tune` for a request."""
    values.callback("what is told of the progress", on_progress, "on_progress")
    from fleet_tune.runs.run import Run

    async def everything() -> TuneResult:
        async with Run(request, on_progress).opened() as run:
            async for _ in run.records():
                pass
            return await run.finish()

    return _run(everything)


def run_collection(request: RunRequest, on_progress: Callable[[Progress], None] | None = None) -> Collected:
    """:func:`collect` for a request that ``collects``."""
    values.callback("what is told of the progress", on_progress, "on_progress")
    from fleet_tune.training import collection

    return _run(lambda: collection.collect(request, on_progress))


def make_plan(request: RunRequest) -> Plan:
    """:func:`plan` for a request."""
    from fleet_tune.runs.preparing import preparation

    return preparation.plan(request)


def _run(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine to its end, also from inside a running event loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: _run(main)).result()
