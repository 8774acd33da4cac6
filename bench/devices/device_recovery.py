"""Seconds from each fault of a candidate, server, tracker or network to the end of the next good measurement.

The benchmark uses a real server (``fleet-tune device serve``), a real tracker, a real TCP proxy, and the client that
device actors use. Candidates are measured by the rule of a tuning run that has an incumbent. When the server itself is
killed, it is started again one second later, as its systemd unit does.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.devices.faulty_proxy import FaultyProxy
from bench.devices.tracker import free_port, tracker
from bench.machine import bench_env, cores
from bench.processes import ROOT, end_group
from bench.result import BenchError, BenchResult, spread
from bench.tables import markdown, median_and_range
from devices.host.children.child import without_torch
from devices.protocol import Artifact, MeasureRequest
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Outcome, StopRule
from policies.measuring.adaptive_stopping import following

ASKED_SECS = {"crash": 3.0}
ASKED_ELSE_SECS = 10.0
_RESTART_SECS = 1.0  # RestartSec of cluster/fleet-tune-device.service
_GIVE_UP_SECS = 120.0
_BEGUN_SECS = 0.5  # after this time the candidate is running
_KILLED = ("kill -9 of the session", "kill -9 of the serving process", "kill -9 of tracker and session")
_CANDIDATES = ("crash", "outside", "allocate", "nan", "hang")
# The rule that a tuning run uses once it has an incumbent of a millisecond.
_RULE = following(StopRule(), 1e-3)


class _Serving:
    """``fleet-tune device serve`` on a port of its own, registered at a tracker; it can be killed and restarted."""

    def __init__(self, port: int, tracker_port: int) -> None:
        command = ["-m", "fleet_tune", "device", "serve", "--no-key", "--port", str(port), "--memory", "1G"]
        self._command = [sys.executable, *command, "--tracker", f"127.0.0.1:{tracker_port}", "--key", "bench"]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=bench_env(cores()),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        if not re.search("ready", self.process.stdout.readline()):
            raise BenchError("the device server did not start")

    def pids(self) -> tuple[int, int]:
        """Return the process ids of the serving process and of its session."""
        (child,) = _children(self.process.pid)
        (session,) = _children(child)
        return child, session

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.wait()
        threading.Event().wait(_RESTART_SECS)
        self.start()

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        end_group(self.process)


def _children(pid: int) -> list[int]:
    # Linux lists children by the thread that started them.
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in texts for word in text.split()]


class _Client:
    """A device as a device actor uses it, and the artifacts to measure on it."""

    def __init__(self, port: int, tracker_key: str | None, artifacts: dict[str, Artifact], oracle: Artifact) -> None:
        from devices.client.rpc_device import RpcDevice

        config = DeviceConfig(name="bench", target="native", threads=cores())
        self._device = RpcDevice(
            config, "127.0.0.1", port, decide="policies.measuring.adaptive_stopping:decide", tracker_key=tracker_key
        )
        self._device.add_oracle(oracle)
        self._artifacts = artifacts

    def measure(self, what: str, rule: StopRule = _RULE) -> Outcome:
        """Measure ``what`` like a candidate that would be the new incumbent, so its output is checked, and return the
        outcome."""
        return self._device.measure(MeasureRequest(self._artifacts[what], math.inf, rule)).outcome

    def until_good(self, since: float) -> float:
        """Measure until a measurement is good, and return the seconds from ``since`` (monotonic clock) to its end.

        Raises :class:`BenchError` after ``_GIVE_UP_SECS``.
        """
        while self.measure("ok") is not Outcome.OK:
            if time.monotonic() - since > _GIVE_UP_SECS:
                raise BenchError(f"no good measurement within {_GIVE_UP_SECS:g} s")
        return time.monotonic() - since

    def close(self) -> None:
        self._device.close()


def run(rounds: int, faults: Sequence[str] = ()) -> BenchResult:
    """Return the recovery times of ``faults`` (all if empty). ``ours``: the median of the slowest fault. There is no
    peer, because TVM's server does not come back after a candidate crashes."""
    without_torch()
    os.environ.setdefault("TVM_NUM_THREADS", str(cores()))
    from bench.devices.fault_kernels import artifact

    artifacts = {what: artifact(what) for what in ("ok", "slow", *_CANDIDATES)}
    oracle = artifact("ok", oracle=True)
    tracker_port, port = free_port(), free_port()
    samples: dict[str, list[float]] = {}
    outcomes: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        restart_tracker = stack.enter_context(tracker(tracker_port))
        serving = _Serving(port, tracker_port)
        stack.callback(serving.stop)
        proxy = stack.enter_context(FaultyProxy(port))
        clients = {
            "direct": lambda: _Client(port, None, artifacts, oracle),
            "tracker": lambda: _Client(tracker_port, "bench", artifacts, oracle),
            "proxy": lambda: _Client(proxy.port, None, artifacts, oracle),
        }

        def kill(which: int, number: signal.Signals) -> Callable[[], None]:
            return lambda: os.kill(serving.pids()[which], number)

        def kill_both() -> None:
            kill(1, signal.SIGKILL)()
            restart_tracker()

        injected: dict[str, tuple[str, Callable[[], Any]]] = {
            "kill -9 of the session": ("direct", kill(1, signal.SIGKILL)),
            "kill -9 of the serving process": ("direct", kill(0, signal.SIGKILL)),
            "kill -9 of the server, restarted": ("direct", serving.kill_and_restart),
            "SIGSTOP of the session": ("direct", kill(1, signal.SIGSTOP)),
            "SIGSTOP of the serving process": ("direct", kill(0, signal.SIGSTOP)),
            "kill -9 of tracker and session": ("tracker", kill_both),
            "network cut: connections reset": ("proxy", lambda: proxy.order("reset")),
            "network cut: connections silent": ("proxy", lambda: proxy.order("hole")),
        }
        chosen = [name for name in (*_CANDIDATES, *injected) if not faults or name in faults]
        for _ in range(rounds):
            for name in chosen:
                way, inject = injected.get(name, ("direct", None))
                client = clients[way]()
                try:
                    client.until_good(time.monotonic())
                    outcome, secs = _once(client, name, inject)
                finally:
                    client.close()
                samples.setdefault(name, []).append(secs)
                outcomes[name] = outcome
    figures: dict[str, dict[str, Any]] = {
        name: {
            "secs": spread(taken),
            "outcome": outcomes[name],
            "asked_secs": ASKED_SECS.get(name, ASKED_ELSE_SECS),
        }
        for name, taken in samples.items()
    }
    return BenchResult(
        bench="device-recovery",
        ours=max(each["secs"]["median"] for each in figures.values()),
        peer=None,
        ratio=None,
        unit="s",
        details={"faults": figures, "rounds": rounds, "threads": cores(), "candidate_timeout_secs": _RULE.timeout_secs},
    )


def _once(client: _Client, name: str, inject: Callable[[], Any] | None) -> tuple[str, float]:
    """Return the outcome of the candidate that met the fault, and the seconds from the fault to the end of the next
    good measurement. ``inject``: causes the fault; None if the candidate itself is the fault."""
    if inject is None:
        since = time.monotonic()
        outcome = client.measure(name)
        return str(outcome), client.until_good(since)
    # The candidate must still run when the fault happens. "hang" would time out without the fault. A candidate whose
    # process is killed is measured a second time, so these faults use "slow", which is only slow the first time.
    times: list[float] = []

    def act() -> None:
        times.append(time.monotonic())
        inject()

    timer = threading.Timer(_BEGUN_SECS, act)
    timer.start()
    outcome = client.measure("slow" if name in _KILLED else "hang", StopRule())
    timer.join()
    return str(outcome), client.until_good(times[0])


def table(result: Mapping[str, Any]) -> str:
    rows = [
        (fault, f"`{figures['outcome']}`", median_and_range(figures["secs"], digits=1), f"{figures['asked_secs']:g}")
        for fault, figures in result["details"]["faults"].items()
    ]
    return markdown(("fault", "the candidate's outcome", "s to the next good measurement", "asked"), rows)


BENCHMARK = Benchmark(
    name="device-recovery",
    help="Seconds from each fault to the end of the next good measurement.",
    options=(
        click.Option(["--fault", "faults"], multiple=True, help="Name of a fault; else all."),
        options.count("--rounds", 3),
    ),
    short=("--rounds", "1"),
    run=run,
    table=table,
)
