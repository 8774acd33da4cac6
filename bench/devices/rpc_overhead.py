"""Time per measurement beyond the kernel's own run time: ours against MetaSchedule's RPCRunner.

Our server and TVM's own server are registered at one tracker. Each side has a client process, and both are asked in
turn. The time of the evaluator does not count as overhead. On our side this is its time on the device; on RPCRunner's
side it is the time of the call, including the round trip, which favours the peer.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bench import options
from bench.benchmark import Benchmark
from bench.devices.tracker import free_port, tracker
from bench.machine import bench_env, cores
from bench.processes import ROOT, Conversation, end_group
from bench.result import BenchError, BenchResult, interleave, spread
from bench.tables import markdown, median_and_range

_OURS, _PEER = "ours", "peer"
_DEADLINE_SECS = 60.0


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[None]:
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=bench_env(cores()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
        if child.poll() is not None:
            raise BenchError(f"{' '.join(arguments)} ended with exit code {child.returncode}")
    finally:
        end_group(child)


def _wait_for_servers(port: int) -> None:
    """Wait until both servers are registered."""
    from devices.rpc.tracker import TrackerClient

    deadline = time.monotonic() + _DEADLINE_SECS
    while True:
        with TrackerClient("127.0.0.1", port, 5.0) as connection:
            free = [connection.count(key)[1] for key in (_OURS, _PEER)]
        if all(free):
            return
        if time.monotonic() > deadline:
            raise BenchError(f"servers that are free at the tracker: ours {free[0]}, TVM's {free[1]}")
        time.sleep(0.1)


def run(rounds: int) -> BenchResult:
    """Return the median seconds of overhead of one measurement of each side, over ``rounds`` rounds in turn. The first
    measurement of each side is not counted."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    ours_port, peer_port = free_port(), free_port()
    serve = (
        "-m",
        "fleet_tune",
        "device",
        "serve",
        "--no-key",
        "--port",
        str(ours_port),
        "--tracker",
        address,
        "--key",
        _OURS,
    )
    plain = ("-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(peer_port))
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracker(port))
        stack.enter_context(_process(*serve))
        stack.enter_context(
            _process(*plain, "--port-end", str(peer_port + 1), "--tracker", address, "--key", _PEER, "--silent")
        )
        _wait_for_servers(port)
        environment = bench_env(cores())
        ours = stack.enter_context(
            Conversation(["-m", "bench.devices.rpc_overhead_process", str(port), _OURS], env=environment)
        )
        peer = stack.enter_context(Conversation(["-m", "bench.peers.rpc_runner", str(port), _PEER], env=environment))
        sides = {
            "ours": (ours, ""),
            "ours, checked": (ours, "check"),
            "peer": (peer, ""),
            "peer, linked": (peer, "linked"),
        }
        walls: dict[str, list[float]] = {name: [] for name in sides}

        def take(name: str) -> list[float]:
            child, line = sides[name]
            answer = child.ask(line, _DEADLINE_SECS)
            walls[name].append(answer["wall_secs"])
            return [answer["wall_secs"] - answer["kernel_secs"]]

        for name in sides:  # warms up connections, worker processes and caches
            take(name)
        for taken in walls.values():
            taken.clear()
        samples = interleave(rounds, {name: partial(take, name) for name in sides})
    figures = {name: {"overhead_secs": spread(samples[name]), "wall_secs": spread(walls[name])} for name in sides}
    medians = {name: figures[name]["overhead_secs"]["median"] for name in sides}
    return BenchResult(
        bench="rpc-overhead",
        ours=medians["ours"],
        peer=medians["peer"],
        ratio=medians["peer"] / medians["ours"],
        unit="s",
        details={"sides": figures, "rounds": rounds, "threads": cores()},
    )


def table(result: Mapping[str, Any]) -> str:
    names = {
        "ours": "fleet-tune",
        "ours, checked": "fleet-tune, with the check of a new best",
        "peer": "MetaSchedule's RPCRunner",
        "peer, linked": "RPCRunner, given a linked library",
    }
    rows = [
        (
            names[side],
            median_and_range(figures["overhead_secs"], scale=1e3, digits=1),
            median_and_range(figures["wall_secs"], scale=1e3, digits=1),
        )
        for side, figures in result["details"]["sides"].items()
    ]
    table = markdown(("ms a measurement", "beyond the evaluator", "in all"), rows)
    return f"{table}\n\nRatio: {result['ratio']:.0f}."


BENCHMARK = Benchmark(
    name="rpc-overhead",
    help="Seconds per measurement beyond the kernel's own run time, ours and RPCRunner's.",
    options=(options.count("--rounds", 40),),
    short=("--rounds", "10"),
    run=run,
    table=table,
)
