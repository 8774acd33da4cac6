"""Builds candidates in a warm, long-lived child process: a candidate that crashes or hangs LLVM costs itself only."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from devices.artifact import Artifact, BuildFailure, BuildRequest, BuildResult, TensorSpec
from devices.build_worker import CACHED_TASKS, encode_task
from devices.child import Child
from fleet_tune.domain import Measurement, Outcome
from fleet_tune.errors import FleetTuneError, UserError


class BuilderStartError(FleetTuneError):
    """The child process could not be started: a fault of the installation, not of a candidate."""


@dataclass(frozen=True, slots=True)
class BuildTimings:
    """Where the time of one build went, in seconds."""

    schedule_secs: float
    compile_secs: float
    link_secs: float


class BuildWorker:
    """One warm child process that builds one candidate at a time.

    ``memory_limit_bytes``: the child is replaced after a build that leaves more resident memory than this.
    ``start_timeout_secs``: how long a fresh child may take to be ready. ``module``: the module that the child runs
    (tests give their own).

    :meth:`build` may be called from any thread; calls queue. The child starts with :meth:`start` or the first build,
    and again after a crash, a timeout or a recycling, without being waited for: the next build waits for it.
    """

    def __init__(
        self,
        memory_limit_bytes: int = 2 << 30,
        start_timeout_secs: float = 120.0,
        module: str = "devices.build_worker",
    ) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        self._start_timeout_secs = start_timeout_secs
        self._module = module
        self._turn = threading.Lock()
        self._starting = threading.Lock()  # no child may start after close()
        self._closed = False
        self._child: Child | None = None
        self._ready = False
        self._known_tasks: OrderedDict[str, None] = OrderedDict()
        self.last_timings: BuildTimings | None = None

    def __enter__(self) -> BuildWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the current child, None before the first start."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the child if there is none, without waiting for it."""
        with self._turn:
            if self._child is None and not self._closed:
                self._start()

    def build(self, request: BuildRequest) -> BuildResult:
        """Build one candidate; blocks for at most its timeout, on top of the start of a fresh child.

        Raises UserError where the build host lacks something (a linker for the target), BuilderStartError if no child
        can be started, RuntimeError after :meth:`close`. Every fault of the candidate is a BuildFailure.
        """
        with self._turn:
            if self._closed:
                raise RuntimeError("the build worker is closed")
            return self._build(self._ready_child(), request)

    def close(self) -> None:
        """Kill the child, also in the middle of a build (whose caller gets a RuntimeError). May be called twice."""
        with self._starting:
            self._closed = True
        if self._child is not None:
            self._child.kill()

    def _build(self, child: Child, request: BuildRequest) -> BuildResult:
        started = time.monotonic()
        try:
            child.channel.send(self._message(request))
            answer = child.channel.receive(request.timeout_secs)
        except TimeoutError:
            self._replace(child)
            return _failure(request, Outcome.BUILD_TIMEOUT, started, f"no result within {request.timeout_secs:g} s")
        except (EOFError, OSError):
            obituary = child.obituary()
            self._replace(child)
            return _failure(request, Outcome.BUILD_ERROR, started, f"the build process ended: {obituary}")
        if answer["resident_bytes"] > self._memory_limit_bytes:
            self._replace(child)
        match answer["status"]:
            case "ok":
                self.last_timings = BuildTimings(answer["schedule_secs"], answer["compile_secs"], answer["link_secs"])
                return _artifact(request, answer)
            case "user_error":
                raise UserError(answer["problem"], answer["next_step"])
            case _:
                return _failure(request, Outcome.BUILD_ERROR, started, answer["detail"])

    def _message(self, request: BuildRequest) -> dict[str, Any]:
        """The request as a msgpack map, with the task if the child does not have it (its cache evicts like ours)."""
        task, candidate = request.task, request.candidate
        known = task.id in self._known_tasks
        self._known_tasks[task.id] = None
        self._known_tasks.move_to_end(task.id)
        if len(self._known_tasks) > CACHED_TASKS:
            self._known_tasks.popitem(last=False)
        return {
            "task_id": task.id,
            "task": None if known else encode_task(task),
            "candidate": candidate and [candidate.sketch, candidate.sketch_id, list(candidate.decisions)],
        }

    def _start(self) -> Child:
        with self._starting:
            if self._closed:
                raise RuntimeError("the build worker was closed during a build")
            self._child = Child(self._module, env={"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
        self._ready = False
        self._known_tasks.clear()
        return self._child

    def _replace(self, child: Child) -> None:
        child.kill()
        self._start()

    def _ready_child(self) -> Child:
        child = self._child
        if child is None or (self._ready and not child.alive()):  # died between two builds: no candidate's fault
            if child is not None:
                child.kill()
            child = self._start()
        if not self._ready:
            try:
                child.channel.receive(self._start_timeout_secs)
            except (EOFError, OSError) as error:
                if self._closed:
                    raise RuntimeError("the build worker was closed during a build") from error
                reason = child.obituary(0.0 if isinstance(error, TimeoutError) else 5.0)
                child.kill()
                self._child = None
                raise BuilderStartError(f"the build process did not start: {reason}") from error
            self._ready = True
        return child


def _artifact(request: BuildRequest, answer: Mapping[str, Any]) -> Artifact:
    return Artifact(
        task_id=request.task.id,
        candidate=request.candidate,
        library=answer["library"],
        args=tuple(TensorSpec(tuple(shape), dtype) for shape, dtype in answer["args"]),
        original_args=tuple(TensorSpec(tuple(shape), dtype) for shape, dtype in answer["original_args"]),
        outputs=tuple(answer["outputs"]),
        packed=tuple(answer["packed"]),
        trace=answer["trace"],
        build_secs=answer["build_secs"],
    )


def _failure(request: BuildRequest, outcome: Outcome, started: float, detail: str) -> BuildFailure:
    measurement = Measurement(outcome, build_secs=time.monotonic() - started, detail=detail)
    return BuildFailure(request.task.id, request.candidate, "", measurement)
