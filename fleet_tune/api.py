"""The Python API: ``tune``, ``stream``, ``plan``, ``collect``, ``compile_network``, ``load``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fleet_tune.config.fleet_file import FleetConfig, default_fleet, load_fleet
from fleet_tune.domain import Record
from fleet_tune.results import Collected, Plan, Progress, TuneResult

if TYPE_CHECKING:
    from devices.networks.compiled import CompiledNetwork
    from fleet_tune.config.options import Options

__all__ = [
    "Collected",
    "Plan",
    "Progress",
    "Record",
    "TuneResult",
    "collect",
    "compile_network",
    "load",
    "plan",
    "stream",
    "tune",
]
_T = TypeVar("_T")


def tune(
    model: Any,
    *,
    out: Path | str,
    method: str = "fleet",
    trials: int | None = None,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    metrics_port: int | None = None,
    transfer_from: Path | str | None = None,
    pretrained: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
) -> TuneResult:
    """Tune a network and leave the compiled result in ``out``; the same call with the same ``out`` resumes.

    ``model``: ``"file.py:function"``, a path of an ``.onnx`` or ``.pt2`` file, or ``(torch module, example inputs)``.
    ``trials`` counts those of earlier runs in ``out`` too; ``time_budget_secs`` is the tuning time of this call; with
    neither, ten minutes. ``fleet``: a fleet file, None for this machine's CPU. ``address``: an existing Ray cluster,
    None for an embedded one. ``on_progress`` is called about twice a second.

    ``transfer_from``: what the search learns from before its first trial: a record database, a dataset, the folder of a
    MetaSchedule database, or a model file. Without it our own method starts from the model that comes with fleet-tune
    where that applies (x86 CPUs), unless ``pretrained`` is false.

    SIGINT and SIGTERM end the tuning early: the result says ``interrupted`` and everything measured is stored.
    Raises :class:`fleet_tune.errors.UserError` for what the caller can mend.
    """
    from fleet_tune.runs.run import Run

    options = dataclasses.replace(
        _options(model, out, method, trials, time_budget_secs, fleet, address, seed, metrics_port),
        transfer_from=None if transfer_from is None else Path(transfer_from),
        pretrained=pretrained,
    )

    async def everything() -> TuneResult:
        async with Run(options, on_progress).opened() as run:
            async for _ in run.records():
                pass
            return await run.finish()

    return _run(everything)


async def stream(
    model: Any,
    *,
    out: Path | str,
    method: str = "fleet",
    trials: int | None = None,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    metrics_port: int | None = None,
    transfer_from: Path | str | None = None,
    pretrained: bool = True,
) -> AsyncIterator[Record]:
    """Tune as :func:`tune` does and yield each new record as soon as it is durable. When the iteration ends by itself,
    the compiled network is in ``out``; leaving it early stops the tuning and keeps the records."""
    from fleet_tune.runs.run import Run

    options = dataclasses.replace(
        _options(model, out, method, trials, time_budget_secs, fleet, address, seed, metrics_port),
        transfer_from=None if transfer_from is None else Path(transfer_from),
        pretrained=pretrained,
    )
    async with Run(options, None).opened() as run:
        async for record in run.records():
            yield record
        await run.finish()


def plan(
    model: Any,
    *,
    method: str = "fleet",
    trials: int | None = None,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    transfer_from: Path | str | None = None,
    pretrained: bool = True,
) -> Plan:
    """What :func:`tune` would do: the tasks with weights and sketches, and what the search would start from. Starts no
    cluster, trains and measures nothing."""
    from fleet_tune.runs import preparation

    options = dataclasses.replace(
        _options(model, Path("."), method, trials, time_budget_secs, fleet, None, 0, None),
        transfer_from=None if transfer_from is None else Path(transfer_from),
        pretrained=pretrained,
    )
    return preparation.plan(options)


def collect(
    model: Any,
    *,
    per_task: int,
    out: Path | str,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Collected:
    """Measure ``per_task`` random candidates of every task of ``model``, each to its end, into ``out/dataset.ftd``.

    The trials of earlier runs in ``out`` count; the other arguments are those of :func:`tune`. The dataset is written
    also where SIGINT or SIGTERM end the collecting early. Raises :class:`fleet_tune.errors.UserError`.
    """
    from fleet_tune.runs import collection

    options = _options(model, out, "random", None, time_budget_secs, fleet, address, seed, None, per_task)
    return _run(lambda: collection.collect(options, on_progress))


def compile_network(
    model: Any, *, records: Path | str, out: Path | str, fleet: Path | str | FleetConfig | None = None
) -> TuneResult:
    """Compile ``model`` from the best records of a database, without tuning."""
    from fleet_tune.runs.preparation import compile_from_records

    options = _options(model, out, "fleet", None, None, fleet, None, 0, None)
    return compile_from_records(options, Path(records))


def load(folder: Path | str) -> CompiledNetwork:
    """The compiled network in ``folder``: a callable on numpy arrays and torch tensors."""
    from devices.networks import compiled

    return compiled.load(Path(folder))


def _options(
    model: Any,
    out: Path | str,
    method: str,
    trials: int | None,
    time_budget_secs: float | None,
    fleet: Path | str | FleetConfig | None,
    address: str | None,
    seed: int,
    metrics_port: int | None,
    per_task: int | None = None,
) -> Options:
    from fleet_tune.config.options import DEFAULT_TIME_BUDGET_SECS, Options

    if fleet is None:
        fleet = default_fleet()
    elif not isinstance(fleet, FleetConfig):
        fleet = load_fleet(Path(fleet))
    if trials is None and time_budget_secs is None and per_task is None:
        time_budget_secs = DEFAULT_TIME_BUDGET_SECS
    return Options(
        model=model,
        # Actors run in other working directories.
        out=Path(out).absolute(),
        method=method,
        trials=trials,
        time_budget_secs=time_budget_secs,
        fleet=fleet,
        address=address,
        seed=seed,
        metrics_port=metrics_port,
        per_task=per_task,
    )


def _run(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine to its end, also from inside a running event loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: _run(main)).result()
