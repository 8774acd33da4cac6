"""Oracles that are too slow for their device. They run on the machine that drives the device, beside the measurements.

An oracle uses all cores and may need much memory. So a machine runs only one at a time for all of its devices.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from devices.builds.builder import memory_limit
from devices.host.limits.confinement import memory_total_bytes
from devices.host.quiet_windows.quiet_window import QuietTimeoutError, QuietWindow, make_own_folder
from devices.host.warm_process import ChildLostError, ChildStartError, WarmProcess
from devices.protocol import Artifact, CheckedRun, OracleOutputs
from devices.timing.arguments import numpy_dtype
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import WindowFolderError
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, wait_for_lock
from fleet_tune.base.timeouts import HOST_ORACLE_SECS

_MODULE = "devices.client.host_oracle_worker"
_TURN_FILE = "oracle"
_TURN = "this machine's turn to run unscheduled programs"


class HostOracles:
    """Runs oracles one after the other, each in a process of its own (:mod:`devices.client.host_oracle_worker`). Quiet
    windows stop that process.

    Args:
        module: the module that the process runs (tests give their own).
        limit_secs: time limit of an oracle in seconds; the time of quiet windows does not count.
        folder: folder of this user on this machine, for the lock with which processes take turns at running oracles;
            ``None`` for no turns.
    """

    def __init__(self, module: str = _MODULE, limit_secs: float = HOST_ORACLE_SECS, folder: Path | None = None) -> None:
        self._folder = folder
        self._module = module
        self._limit_secs = limit_secs
        self._one_at_a_time = threading.Lock()
        self._computing: dict[str, threading.Event] = {}  # by task whose oracle was started; set once it has ended
        self._outputs: dict[str, OracleOutputs] = {}
        self._failures: dict[str, str] = {}
        self._process: WarmProcess | None = None
        self._closed = False

    def begin(self, artifact: Artifact, window: QuietWindow | None) -> None:
        """Start an oracle in the background. Do nothing if it was started before, or if ``artifact`` has no program.
        ``window``: the quiet window of this host; ``None`` if nothing is measured on it."""
        task_id = artifact.task_id
        if task_id not in self._computing and artifact.program:
            self._computing[task_id] = threading.Event()
            threading.Thread(target=self._run, args=(artifact, window), daemon=True, name="oracle").start()

    def is_computing(self, task_id: str) -> bool:
        """Return true while the oracle of a task runs here, or waits for its turn."""
        return task_id in self._computing and not self._computing[task_id].is_set()

    def outputs(self, task_id: str) -> OracleOutputs | None:
        """Return the outputs of a task's oracle; ``None`` until they are computed."""
        return self._outputs.get(task_id)

    def failure(self, task_id: str) -> str:
        """Return in one line why a task's oracle failed; empty if it has not failed."""
        return self._failures.get(task_id, "")

    def wait(self, task_id: str, secs: float) -> None:
        """Wait at most ``secs`` for the end of a task's oracle. Return at once if it was not started."""
        if task_id in self._computing:
            self._computing[task_id].wait(secs)

    def close(self) -> None:
        """End the process. May be called twice."""
        self._closed = True
        if self._process is not None:
            self._process.close()

    def _run(self, artifact: Artifact, window: QuietWindow | None) -> None:
        task_id = artifact.task_id
        try:
            with self._one_at_a_time, self._turn():
                self._outputs[task_id] = self._computed(artifact, window)
        except (ChildLostError, ChildStartError, QuietTimeoutError, WindowFolderError, OSError, ValueError) as error:
            self._failures[task_id] = str(error)
        finally:
            self._computing[task_id].set()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold this machine's turn during the block. If another process holds it for longer than an oracle may take, go
        on without the turn: two oracles at a time are better than none."""
        lock = None
        if self._folder is not None:
            make_own_folder(self._folder)
            with contextlib.suppress(LockedError):
                lock = wait_for_lock(self._folder / _TURN_FILE, _TURN, self._limit_secs)
        try:
            yield
        finally:
            if lock is not None:
                release_lock(lock)

    def _computed(self, artifact: Artifact, window: QuietWindow | None) -> OracleOutputs:
        """Run an oracle. Raises ChildLostError, ChildStartError or ValueError if it cannot be run here."""
        limit = ["--memory-limit", str(memory_limit(memory_total_bytes(), 1))]
        threads = {"TVM_NUM_THREADS": str(usable_cpus())}
        self._process = WarmProcess(
            self._module,
            "runs unscheduled programs",
            limit,
            threads,
            answer_secs=self._limit_secs,
            window=window,
        )
        with contextlib.closing(self._process):
            if self._closed:
                raise ValueError("the device is closed")
            answer = self._process.ask(_request(artifact))
        if "failed" in answer:
            raise ValueError(answer["failed"])
        runs = tuple(CheckedRun(special, _arrays(artifact, outputs)) for special, outputs in answer["runs"])
        return OracleOutputs(answer["positive"], runs)


def _request(artifact: Artifact) -> dict[str, Any]:
    return {
        "task_id": artifact.task_id,
        "program": artifact.program,
        "args": [asdict(spec) for spec in artifact.original_args],
        "outputs": list(artifact.outputs),
        "check": asdict(artifact.check),
    }


def _arrays(artifact: Artifact, outputs: list[bytes]) -> list[np.ndarray[Any, Any]]:
    specs = [artifact.original_args[at] for at in artifact.outputs]
    return [
        np.frombuffer(body, numpy_dtype(spec.dtype)).reshape(spec.shape)
        for spec, body in zip(specs, outputs, strict=True)
    ]
