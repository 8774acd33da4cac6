"""Child processes of the benchmarks: each side runs in one, and no child outlives its benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from bench.machine import bench_env, cores
from bench.result import BenchError
from devices.host.children.parent import end_with_parent

ROOT = Path(__file__).resolve().parent.parent
"""The repository: the working directory of every child."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends, even by kill -9."""
    end_with_parent()


def run_json(args: Sequence[str], *, env: Mapping[str, str], timeout_secs: float) -> dict[str, Any]:
    """Run ``python args...`` in the repository root and return the JSON object on its last output line.

    The child leads a process group of its own. The whole group is killed at the end, on a timeout and on an interrupt,
    so no worker of a peer survives its benchmark. Raises :class:`BenchError` on a timeout, if the last line is not a
    JSON object, and for an exit code other than 0, then with the end of the child's error output.
    """
    child = _start(args, env, subprocess.DEVNULL)
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


def _start(args: Sequence[str], env: Mapping[str, str], stdin: int) -> subprocess.Popen[str]:
    """Start ``python args...`` as the leader of a process group of its own; ``stdin``: a constant of subprocess."""
    return subprocess.Popen(
        [sys.executable, *args],
        cwd=ROOT,
        env=dict(env),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # The child's own call comes only after its imports. If we ended during these, the child would survive.
        preexec_fn=die_with_parent,
    )


def start_logged(args: Sequence[str], log: TextIO) -> subprocess.Popen[bytes]:
    """Start ``python args...`` as the leader of a process group of its own, with all of its output in ``log``."""
    return subprocess.Popen(
        [sys.executable, *args],
        cwd=ROOT,
        env=bench_env(cores()),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def last_json(text: str, label: str) -> dict[str, Any]:
    """Return the JSON object on the last non-empty line of ``text``. Raises :class:`BenchError` if there is none.

    ``label``: name of the child in the error.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        value = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise BenchError(f"{label}: its last output line is not JSON: {lines[-1:]}") from error
    if not isinstance(value, dict):
        raise BenchError(f"{label}: its last output line is not a JSON object: {lines[-1]}")
    return value


def end_group(child: subprocess.Popen[Any]) -> None:
    """Kill the process group that ``child`` leads (started with ``start_new_session``), and wait for ``child``."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class Conversation:
    """A child process that answers each line on its standard input with one JSON line.

    Used as a context manager. The child prints a first JSON line, ``ready``, when it has started; the constructor
    raises :class:`BenchError` if it does not come within ``start_timeout_secs``. The child must write any other output
    to stderr.
    """

    def __init__(self, args: Sequence[str], *, env: Mapping[str, str], start_timeout_secs: float = 600.0) -> None:
        self._label = " ".join(args)
        self._child = _start(args, env, subprocess.PIPE)
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
        """Send one line and return the answer. Raises :class:`BenchError` if the child ends, or if it does not answer
        within ``timeout_secs``."""
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
        # Killing the group makes readline return, so the deadline needs no second reader of the pipe.
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
