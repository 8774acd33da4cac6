"""A pool of processes for replays. Each process has all recorded tasks of a dataset and makes one run at a time."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import cloudpickle

from bench.datasets import read
from bench.machine import bench_env
from bench.processes import die_with_parent
from bench.replay.replay_runs import RecordedTask
from bench.replay.run_cache import RunCache
from policies.search.methods import Method

Key = TypeVar("Key")
Run = TypeVar("Run")

_PROGRESS_SECS = 30.0

tasks: list[RecordedTask] = []
"""The tasks of the dataset in a process of the pool; empty in other processes."""


def _start(dataset: Path) -> None:
    die_with_parent()
    tasks.extend(RecordedTask(data) for data in read(dataset))


@contextmanager
def replaying(dataset: Path, jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``jobs`` processes of one thread each, which have loaded ``dataset``."""
    os.environ.update(bench_env(1))  # before the workers start
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start, initargs=(dataset,)) as pool:
        yield pool


def submit(pool: ProcessPoolExecutor, do: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Run ``do(*arguments)`` in the pool. The arguments may have a search method from a user's file: cloudpickle sends
    its classes by value."""
    return pool.submit(_run, cloudpickle.dumps((do, arguments)))


def _run(pickled: bytes) -> Any:
    do, arguments = cloudpickle.loads(pickled)
    return do(*arguments)


@dataclass(frozen=True)
class Call(Generic[Run]):
    """A run to make in a process of the pool: ``do(*arguments)``, with ``do`` a function of a module. The run is cached
    under ``method``, ``task`` and ``seed``."""

    method: Method
    task: str
    seed: int
    do: Callable[..., Run]
    arguments: tuple[Any, ...]


def played(dataset: Path, jobs: int, kept: RunCache[Run], calls: Mapping[Key, Call[Run]]) -> dict[Key, Run]:
    """Return the runs of all ``calls``, in their order. Runs that the cache ``kept`` lacks are made and added to it."""
    runs = {key: kept.find(call.method, call.task, call.seed) for key, call in calls.items()}
    missing = {key: calls[key] for key, run in runs.items() if run is None}

    def take(run: Run, key: Key) -> None:
        runs[key] = run
        kept.add(calls[key].method, calls[key].task, calls[key].seed, run)

    if missing:
        with replaying(dataset, jobs) as pool:
            collect({submit(pool, call.do, *call.arguments): partial(take, key=key) for key, call in missing.items()})
    return {key: run for key, run in runs.items() if run is not None}


def collect(waiting: Mapping[Future[Any], Callable[[Any], None]]) -> None:
    """Pass the result of each future to its function as soon as it is done, and print the progress now and then. If
    anything fails, cancel the futures that have not started and raise the error."""
    told = time.perf_counter()
    try:
        for done, future in enumerate(as_completed(waiting), 1):
            waiting[future](future.result())
            if time.perf_counter() - told > _PROGRESS_SECS:
                told = time.perf_counter()
                print(f"{done} of {len(waiting)} runs", file=sys.stderr, flush=True)
    except BaseException:
        for future in waiting:
            future.cancel()
        raise
