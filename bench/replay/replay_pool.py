"""Processes that replay: each has all recorded tasks of a dataset, and does one run at a time."""

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
"""Tasks of the dataset, in a process of the pool."""


def _start(dataset: Path) -> None:
    die_with_parent()
    tasks.extend(RecordedTask(data) for data in read(dataset))


@contextmanager
def replaying(dataset: Path, jobs: int) -> Iterator[ProcessPoolExecutor]:
    """``jobs`` processes of one thread each."""
    os.environ.update(bench_env(1))  # before the workers start
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start, initargs=(dataset,)) as pool:
        yield pool


def submit(pool: ProcessPoolExecutor, do: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Run ``do(*arguments)`` in the pool. A method of a user's file may be among the arguments: its classes travel by
    value."""
    return pool.submit(_run, cloudpickle.dumps((do, arguments)))


def _run(pickled: bytes) -> Any:
    do, arguments = cloudpickle.loads(pickled)
    return do(*arguments)


@dataclass(frozen=True)
class Call(Generic[Run]):
    """A run to make: ``do(*arguments)``, of a module, in a process of the pool; and by what it is kept."""

    method: Method
    task: str
    seed: int
    do: Callable[..., Run]
    arguments: tuple[Any, ...]


def played(dataset: Path, jobs: int, kept: RunCache[Run], calls: Mapping[Key, Call[Run]]) -> dict[Key, Run]:
    """Runs of all ``calls``, in their order: from the cache, or made and cached."""
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
    """Hand on every result; now and then say how far it is."""
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
