"""Builds candidates in a warm, long-lived child process, so that a candidate that crashes or hangs LLVM affects no
other."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any

from devices.builds.cache import ArtifactCache, artifact_key, usable_folder
from devices.builds.libraries import libraries_of
from devices.builds.linking import find_linker
from devices.builds.worker import CACHED_TASKS, PASS_OPTIONS
from devices.cuda import compiler as cuda_compiler
from devices.host.children.child import ChildProcess
from devices.host.children.exit_causes import ended_from_outside
from devices.host.file_cache import tvm_versions
from devices.host.limits.confinement import memory_total_bytes
from devices.host.limits.memory import over_memory
from devices.host.quiet_windows.process_pauser import PauseRegistration
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.protocol import (
    UNKNOWN,
    Artifact,
    BuildRequest,
    BuildResult,
    TensorSpec,
    decode_check_plan,
    encode_task,
)
from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.errors import FleetTuneError, UserError

# Least memory limit of a child. It takes 0.2 GiB before its first build; with a much lower limit, many builds would
# fail.
MIN_BUILD_BYTES = 1 << 30
MAX_BUILD_BYTES = 8 << 30
MAX_START_SECS = 600.0


class BuilderStartError(FleetTuneError):
    """The child process could not be started, or lacks disk space, processes or open files: a fault of the installation
    or machine, not of a candidate."""


@dataclass(frozen=True, slots=True)
class BuildTimings:
    """Time of one build by its parts, in seconds."""

    schedule_secs: float
    compile_secs: float
    link_secs: float


class BuildWorker:
    """One warm child process that builds one candidate at a time.

    :meth:`build` may be called from any thread; calls queue. :meth:`start` or the first build starts the child, and a
    new one starts after a crash, a timeout or a recycling. Only the next build waits for the start.

    Args:
        artifacts: folder of the artifact cache (see :mod:`devices.builds.cache`); None for no cache.
        workers: number of build workers that share this host.
        memory_limit_bytes: memory limit of the child; a build that needs more fails. None for the value of
            :func:`memory_limit`.
        recycle_bytes: the child is replaced if its resident memory after a build exceeds this, or half of its limit,
            whichever is less.
        recycle_builds: number of builds after which the child is replaced.
        start_timeout_secs: time limit for the start of a child; doubled after each start that took longer, up to
            ``MAX_START_SECS``.
        module: the module that the child runs (tests give their own).
        window: quiet window that stops the child while a device of this host measures; such seconds do not count.
    """

    def __init__(
        self,
        artifacts: Path | None = None,
        workers: int = 1,
        *,
        memory_limit_bytes: int | None = None,
        recycle_bytes: int = 2 << 30,
        recycle_builds: int = 2000,
        start_timeout_secs: float = 120.0,
        module: str = "devices.builds.worker",
        window: QuietWindow | None = None,
    ) -> None:
        self._window = window
        self._clock = time.monotonic if window is None else window.clock
        self._stoppable: PauseRegistration | None = None
        self._cache = ArtifactCache(usable_folder(artifacts)) if artifacts is not None else None
        self._memory_limit_bytes = memory_limit_bytes or memory_limit(memory_total_bytes(), workers)
        self._recycle_bytes = min(recycle_bytes, self._memory_limit_bytes // 2)
        self._recycle_builds = recycle_builds
        self._builds = 0  # of the child that runs
        self._start_timeout_secs = start_timeout_secs
        self._module = module
        self._turn = threading.Lock()
        self._starting = threading.Lock()  # no child may start after close()
        self._closed = False
        self._child: ChildProcess | None = None
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
        """Build one candidate. Blocks for at most its timeout, plus the start of a fresh child. If the candidate was
        built before, its artifact comes from the cache, with the build time of that build.

        Every fault of the candidate is returned as a failed Measurement. If the child was ended from outside, the
        Measurement has the outcome KILLED.

        Raises UserError if the build host lacks something (a linker for the target), BuilderStartError if no child can
        be started or the host is short of resources, RuntimeError after :meth:`close`.
        """
        with self._turn:
            if self._closed:
                raise RuntimeError("the build worker is closed")
            key = artifact_key(request, built_by(request.task.device_class.target)) if self._cache else ""
            cached = self._cache.find(key, request) if self._cache else None
            if cached is not None:
                return cached
            result = self._build(self._ready_child(), request)
            if self._cache is not None and isinstance(result, Artifact):
                self._cache.store(key, result)
            return result

    def close(self) -> None:
        """Kill the child, even during a build, whose caller then gets a RuntimeError. May be called twice."""
        with self._starting:
            self._closed = True
        if self._child is not None:
            self._child.kill()
        if self._stoppable is not None:
            self._stoppable.close()

    def _build(self, child: ChildProcess, request: BuildRequest) -> BuildResult:
        started = self._clock()
        try:
            child.channel.send(self._message(request))
            answer = child.channel.receive(request.timeout_secs, self._clock)
        except TimeoutError:
            build_secs = self._clock() - started
            self._replace(child)
            detail = f"no result within {request.timeout_secs:g} s"
            return Measurement(Outcome.BUILD_TIMEOUT, build_secs=build_secs, detail=detail)
        except (EOFError, OSError):
            build_secs = self._clock() - started
            obituary = child.obituary()
            self._replace(child)
            # A build cannot exceed its memory limit: the kernel kills a child only if the host has less memory than
            # that.
            outcome = Outcome.KILLED if ended_from_outside(obituary) else Outcome.BUILD_ERROR
            return Measurement(outcome, build_secs=build_secs, detail=self._ended(obituary))
        build_secs = min(answer["build_secs"], self._clock() - started)  # the child's clock runs on while it is stopped
        self._builds += 1
        starved = answer["status"] == "error" and over_memory(answer["detail"])
        grown = answer["resident_bytes"] > self._recycle_bytes
        if starved or grown or self._builds >= self._recycle_builds:
            self._replace(child)
        match answer["status"]:
            case "ok":
                self.last_timings = BuildTimings(answer["schedule_secs"], answer["compile_secs"], answer["link_secs"])
                return _artifact(request, answer, build_secs)
            case "short":
                raise BuilderStartError(f"nothing can be built on this machine: {answer['detail']}")
            case "user_error":
                raise UserError(answer["problem"], answer["next_step"])
            case _:
                detail = self._ended(answer["detail"]) if starved else answer["detail"]
                return Measurement(Outcome.BUILD_ERROR, build_secs=build_secs, detail=detail)

    def _ended(self, reason: str) -> str:
        if over_memory(reason):
            return f"the build needed more than {self._memory_limit_bytes >> 20} MiB of memory ({reason})"
        return f"the build process ended: {reason}"

    def _message(self, request: BuildRequest) -> dict[str, Any]:
        """Return the request as a map for msgpack, with the task if the child does not have it. The child's cache
        evicts tasks in the same order as ours."""
        task, candidate = request.task, request.candidate
        child_has_it = task.id in self._known_tasks
        self._known_tasks[task.id] = None
        self._known_tasks.move_to_end(task.id)
        if len(self._known_tasks) > CACHED_TASKS:
            self._known_tasks.popitem(last=False)
        return {
            "task_id": task.id,
            "task": None if child_has_it else encode_task(task),
            "candidate": candidate and [candidate.sketch, candidate.sketch_id, list(candidate.decisions)],
        }

    def _start(self) -> ChildProcess:
        with self._starting:
            if self._closed:
                raise RuntimeError("the build worker was closed during a build")
            arguments = [f"--memory-limit={self._memory_limit_bytes}"]
            self._child = None
            start = partial(ChildProcess, self._module, arguments, {"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
            try:
                if self._window is None:
                    self._child = start()
                else:
                    if self._stoppable is not None:
                        self._stoppable.close()
                    self._child, self._stoppable = self._window.started(start)
            except OSError as error:  # no memory, no processes, no descriptors left
                raise BuilderStartError(f"the build process cannot be started: {error.strerror or error}") from error
        self._ready = False
        self._builds = 0
        self._known_tasks.clear()
        return self._child

    def _replace(self, child: ChildProcess) -> None:
        child.kill()
        with contextlib.suppress(BuilderStartError):  # this build has its result; the next build reports the error
            self._start()

    def _ready_child(self) -> ChildProcess:
        child = self._child
        if child is None or (self._ready and not child.alive()):  # died between builds: no candidate's fault
            if child is not None:
                child.kill()
            child = self._start()
        if not self._ready:
            try:
                child.channel.receive(self._start_timeout_secs, self._clock)
            except (EOFError, OSError) as error:
                if self._closed:
                    raise RuntimeError("the build worker was closed during a build") from error
                late = isinstance(error, TimeoutError)
                reason = f"not within {self._start_timeout_secs:g} s" if late else child.obituary()
                child.kill()
                self._child = None
                if late:  # on a slow machine the next one may be no faster
                    self._start_timeout_secs = min(
                        max(MAX_START_SECS, self._start_timeout_secs), 2 * self._start_timeout_secs
                    )
                raise BuilderStartError(f"the build process did not start: {reason}") from error
            self._ready = True
        return child


@cache
def built_by(target: str) -> str:
    """Return a text of everything that an artifact depends on besides its request: versions, options of code
    generation, the compiler of GPU code, whether there is a linker (without one the artifact consists of object files),
    and the library that kernels may call. Raises LibraryMissingError if that library is not installed, LinkerError if
    this machine has no linker for itself."""
    gpu = cuda_compiler.describe() if json.loads(target)["kind"] == "cuda" else ""
    libraries = [each.description for each in libraries_of(target)]
    links = find_linker(target) is not None
    return json.dumps([tvm_versions(), PASS_OPTIONS, gpu, links, libraries], sort_keys=True)


def memory_limit(total_bytes: int, workers: int) -> int:
    """Return the memory limit in bytes for each of ``workers`` children on a host (or in a control group) with
    ``total_bytes``: an equal part of half of the memory, at least 1 GiB and at most 8 GiB. The other half is for the
    search and the devices."""
    return max(MIN_BUILD_BYTES, min(MAX_BUILD_BYTES, total_bytes // 2 // workers))


def _artifact(request: BuildRequest, answer: Mapping[str, Any], build_secs: float) -> Artifact:
    return Artifact(
        task_id=request.task.id,
        candidate=request.candidate,
        library=answer["library"],
        args=tuple(TensorSpec(tuple(shape), *types) for shape, *types in answer["args"]),
        original_args=tuple(TensorSpec(tuple(shape), *types) for shape, *types in answer["original_args"]),
        outputs=tuple(answer["outputs"]),
        packed=tuple(answer["packed"]),
        trace=answer["trace"],
        build_secs=build_secs,
        check=decode_check_plan(answer["check"]) if answer.get("check") else UNKNOWN,
        flop=request.task.workload.flop,
        program=request.task.workload.module if request.candidate is None else "",
    )
