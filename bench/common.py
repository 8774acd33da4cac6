"""What all benchmarks share: the result object, medians with their spread, the machine, child processes."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ray", "torch", "onnxruntime", "xgboost-cpu", "numpy")
_PR_SET_PDEATHSIG = 1


class BenchError(Exception):
    """A side of a benchmark did not deliver its figure: there is no result to report."""


@dataclass(frozen=True)
class BenchResult:
    """One benchmark's outcome.

    ``ours`` and ``peer`` are the same figure in ``unit``; ``ratio`` compares them so that above 1 is better for us.
    ``peer`` and ``ratio`` are None where there is nothing to compare with, ``ours`` too where the machine lacks what
    the benchmark is about; ``details`` then has the ``reason``. ``details`` is JSON-compatible.
    """

    bench: str
    ours: float | None
    peer: float | None
    ratio: float | None
    unit: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON with the keys in the documented order; figures rounded to 5 digits."""
        body = {
            "bench": self.bench,
            "ours": _round(self.ours),
            "peer": _round(self.peer),
            "ratio": _round(self.ratio),
            "unit": self.unit,
            "details": _round({**self.details, "machine": machine()}),
        }
        return json.dumps(body)


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {str(key): _round(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    return value


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and number of ``samples`` (at least one); in the samples' unit."""
    if not samples:
        raise BenchError("no samples were taken")
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "count": len(samples)}


def interleave(rounds: int, sides: Mapping[str, Callable[[], Sequence[float]]]) -> dict[str, list[float]]:
    """Calls every side once a round, in turn, and collects the samples: drift of a shared machine hits all alike."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, take in sides.items():
            samples[name].extend(take())
    return samples


def cores() -> int:
    """CPUs that this process may use: the number of threads of every side."""
    return len(os.sched_getaffinity(0))


def machine() -> dict[str, Any]:
    """CPU, memory, system and package versions that the figures belong to."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "cpu": cpu,
        "cores": cores(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def bench_env(threads: int, **extra: str) -> dict[str, str]:
    """Environment of a child: every library that has a thread count of its own gets the same one."""
    count = str(threads)
    names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, count), "PYTHONUNBUFFERED": "1", **extra}


def die_with_parent() -> None:
    """Asks the kernel to end this process when the thread that started it ends, be it by kill -9."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def run_json(args: Sequence[str], *, env: Mapping[str, str], timeout_secs: float) -> dict[str, Any]:
    """Runs ``python args...`` from the repository root and returns the JSON object on its last output line.

    The child leads a process group of its own, which is ended as a whole on a timeout or an interrupt, so no worker of
    a peer survives its benchmark. Raises :class:`BenchError` with the end of the child's error output.
    """
    child = subprocess.Popen(
        [sys.executable, *args],
        cwd=ROOT,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    label = " ".join(args)
    try:
        out, err = child.communicate(timeout=timeout_secs)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{label}: no result within {timeout_secs:.0f} s") from error
    finally:
        end_group(child)
    if child.returncode != 0:
        raise BenchError(f"{label}: exit code {child.returncode}: {err[-2000:].strip()}")
    return last_json(out, label)


def last_json(text: str, label: str) -> dict[str, Any]:
    """The JSON object on the last non-empty line of ``text``."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        value = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise BenchError(f"{label}: its last output line is no JSON: {lines[-1:]}") from error
    if not isinstance(value, dict):
        raise BenchError(f"{label}: its last output line is no JSON object: {lines[-1]}")
    return value


def end_group(child: subprocess.Popen[Any]) -> None:
    """Ends whatever is left of the process group that ``child`` leads (started with ``start_new_session``)."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class Conversation:
    """A child process that answers each line on its standard input with one JSON line.

    Used as a context manager. ``start`` lines are awaited with a deadline; other output of the child goes to stderr.
    """

    def __init__(self, args: Sequence[str], *, env: Mapping[str, str], start_timeout_secs: float = 600.0) -> None:
        self._label = " ".join(args)
        self._child = subprocess.Popen(
            [sys.executable, *args],
            cwd=ROOT,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._errors: list[str] = []
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()
        try:
            self.ready = self._answer(start_timeout_secs)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, line: str, timeout_secs: float = 120.0) -> dict[str, Any]:
        """Sends one line and returns the answer; :class:`BenchError` if the child ends or is silent too long."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line + "\n")
            self._child.stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(f"{self._label} ended: {self._error_text()}") from error
        return self._answer(timeout_secs)

    def close(self) -> None:
        end_group(self._child)
        self._drain.join(timeout=5)
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _answer(self, timeout_secs: float) -> dict[str, Any]:
        assert self._child.stdout is not None
        # Killing the group makes readline return: a deadline without a second reader of the pipe.
        watchdog = threading.Timer(timeout_secs, end_group, [self._child])
        watchdog.start()
        try:
            line = self._child.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise BenchError(f"{self._label} ended or was silent for {timeout_secs:.0f} s: {self._error_text()}")
        return last_json(line, self._label)

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._errors.append(line)
            del self._errors[:-100]

    def _error_text(self) -> str:
        self._drain.join(timeout=2)
        return "".join(self._errors)[-2000:].strip()
