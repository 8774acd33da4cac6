"""One run with injected failures: ``python -m bench.runs.chaos_process --kills 20 --trials 2000`` prints one line of
JSON.

The command of the run is a child process (:mod:`bench.runs.chaos_run`). If it ends before the run is complete, it is
started again, as a user would. The failures hit the command, the processes of its run, and those of its cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil  # type: ignore[import-untyped]

from bench.processes import ROOT, die_with_parent
from bench.result import BenchError
from bench.runs.chaos import CANDIDATE_SECS
from bench.runs.chaos_nodes import Nodes
from fleet_tune.base.records.stores.reader import RecordReader

ACTORS = ("Scheduler", "Recorder", "Searcher", "Learner", "Builders", "DeviceActor")
CHILDREN = {"Builders": "build child", "DeviceActor": "device server"}
"""Kinds of the child processes of some actors, by actor. Only a real run has them."""
COMMAND = "the command"
_SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
_KILLED_ONLY = frozenset({COMMAND})
"""Kinds of processes that are killed and never stopped: only a user would notice that the command is stopped."""
_OF_RAY = ("gcs_server", "raylet")
_LOOK_SECS = 0.05
_SILENT_SECS = 900.0
_AGAIN_SECS = 2.0  # until the command is started again
_MOST_ENDS = 10  # consecutive early ends with the same message, after which the benchmark gives up
# Share of the trials before the first kill, and after the last kill.
_MARGIN = 0.05

Victims = dict[str, list[list[psutil.Process]]]
"""Groups of processes that get a signal together, by kind of process."""


@dataclass
class Command:
    """The command of the run. It is started again each time that it ends early."""

    arguments: Sequence[str]
    folder: Path
    nodes: Nodes | None
    heard: list[str] = field(default_factory=list)
    """Ids of the records that the command has printed, in order."""
    heard_at: list[float] = field(default_factory=list)
    """Time at which each id was printed, on the monotonic clock."""
    ends: list[str] = field(default_factory=list)
    """Reason of each early end: the last line of standard error, or the exit code."""
    process: subprocess.Popen[bytes] | None = None

    async def work(self) -> None:
        """Run the command until the run is complete. Raises :class:`BenchError` if the command prints no line for
        ``_SILENT_SECS``, or ends early ``_MOST_ENDS`` times in a row for the same reason."""
        while not await self._once():
            if self.ends[-_MOST_ENDS:] == self.ends[-1:] * _MOST_ENDS:
                raise BenchError(f"the run ends again and again: {self.ends[-1]}")
            await asyncio.sleep(_AGAIN_SECS)
            if self.nodes is not None and not self.nodes.is_well:
                await asyncio.to_thread(self.nodes.start)

    async def _once(self) -> bool:
        cluster = ["--address", self.nodes.address] if self.nodes is not None else []
        env = dict(os.environ) if self.nodes is None else {**os.environ, **self.nodes.env}
        log = self.folder / f"command-{len(self.ends)}.log"
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.runs.chaos_run", *self.arguments, *cluster],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=die_with_parent,
            )
        try:
            through = await self._follow(self.process)
        finally:
            family = _family(self.process.pid)
            _signal(family, signal.SIGKILL)  # a stopped process would not end by itself
            self.process.wait()
        if not through:
            told = log.read_text().strip().splitlines()
            self.ends.append(told[-1] if told else f"exit code {self.process.returncode}")
        return through

    async def _follow(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        while True:
            try:
                line = (await asyncio.wait_for(reader.readline(), _SILENT_SECS)).decode()
            except TimeoutError as error:
                raise BenchError(f"the run has reported no record for {_SILENT_SECS:.0f} s") from error
            if line == "over\n":
                return True
            if not line.endswith("\n"):  # end of file, perhaps in the middle of a line
                return False
            if line.startswith("record "):  # Ray prints other lines
                self.heard.append(line.split()[1])
                self.heard_at.append(time.monotonic())

    def victims(self) -> Victims:
        """Return the processes of the run and of its cluster that can be killed or stopped now."""
        found: Victims = {}
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(psutil.Error):
                found[COMMAND] = [[psutil.Process(self.process.pid)]]
        below = _family(os.getpid())
        for process in below:
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                role = next((each for each in ACTORS if f"ray::{each}" in title), None)
                if role is None:
                    if self.nodes is None and process.name() in _OF_RAY:
                        found.setdefault(process.name(), []).append([process])
                    continue
                found.setdefault(role, []).append([process])
                if role in CHILDREN:
                    found.setdefault(CHILDREN[role], []).extend([each] for each in process.children(recursive=True))
        if self.nodes is not None:
            found |= self.nodes.victims()
        return {role: groups for role, groups in found.items() if groups}


@dataclass
class Monkey:
    """Kills and stops random processes of a run at random moments."""

    kills: int
    """Number of kills and stops."""
    trials: int
    """Number of trials of the run. The kills are spread over them."""
    rng: random.Random
    done: list[dict[str, Any]] = field(default_factory=list)
    """The kills and stops so far: ``role``, ``signal`` and ``at_secs``, the seconds since the start."""

    async def work(self, command: Command) -> None:
        first, last = _MARGIN * self.trials, (1 - _MARGIN) * self.trials
        began = time.monotonic()
        for due in sorted(self.rng.uniform(first, last) for _ in range(self.kills)):
            while len(command.heard) < due:
                await asyncio.sleep(_LOOK_SECS)
            victims = await asyncio.to_thread(command.victims)
            role = chosen(victims, self.rng)
            number = signal.SIGKILL if role in _KILLED_ONLY else self.rng.choice(_SIGNALS)
            _signal(self.rng.choice(victims[role]), number)
            self.done.append({"role": role, "signal": number.name, "at_secs": time.monotonic() - began})


def chosen(victims: Victims, rng: random.Random) -> str:
    """Return the kind of process to kill next. All kinds are equally likely, whatever their number of processes."""
    return rng.choice(sorted(victims))


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        family: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        return family
    return []


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


async def _mended(nodes: Nodes) -> None:
    """Replace failed nodes, once a second, until cancelled."""
    while True:
        await asyncio.sleep(1.0)
        await asyncio.to_thread(nodes.mend)


async def play(
    kills: int,
    trials: int,
    devices: int,
    seed: int,
    network: str | None,
    folder: Path,
    count: int = 0,
    candidate_secs: float = CANDIDATE_SECS,
) -> dict[str, Any]:
    """Play one run and return its figures.

    Args:
        kills: number of kills and stops.
        trials: number of trials.
        devices: number of simulated devices.
        seed: seed of the run, and of the kills.
        network: network of a real run. None for a run with simulated devices.
        folder: folder for all files.
        count: number of nodes of the cluster beside its head. If 0, the run starts its own cluster.
        candidate_secs: seconds of a candidate on a simulated device.
    """
    out = folder / "out"
    out.mkdir()
    arguments = ["--trials", str(trials), "--out", str(out), "--devices", str(devices), "--seed", str(seed)]
    arguments += ["--candidate", str(candidate_secs)] if network is None else ["--network", network]
    monkey = Monkey(kills, trials, random.Random(seed))
    with contextlib.ExitStack() as stack:
        nodes = None
        if count:
            nodes = Nodes(folder, count)
            stack.callback(nodes.close)
            await asyncio.to_thread(nodes.start)
        command = Command(arguments, folder, nodes)
        beside = [asyncio.ensure_future(monkey.work(command))]
        if nodes is not None:
            beside.append(asyncio.ensure_future(_mended(nodes)))
        try:
            await command.work()
        finally:
            for each in beside:
                each.cancel()
            failed = await asyncio.gather(*beside, return_exceptions=True)
        for error in failed:
            if isinstance(error, Exception):
                raise error
    return {
        **_figures(command, out),
        "kills": monkey.done,
        "ends": command.ends,
        "nodes": count,
    }


def _figures(command: Command, out: Path) -> dict[str, Any]:
    with RecordReader(out / "records.db") as reader:
        stored = list(reader)
        bests = [(task.weight, reader.best(task.id)) for task in reader.tasks()]
    uids = Counter(record.uid for record in stored)
    tried = Counter((record.task_id, record.candidate.id) for record in stored if record.revision == 0)
    heard = Counter(command.heard)
    times = command.heard_at
    return {
        "acknowledged": len(command.heard),
        "lost": sum(uid not in uids for uid in heard),
        "doubled": sum(count - 1 for counts in (uids, tried, heard) for count in counts.values()),
        "trials": tried.total(),
        "best_secs": sum(weight * best.measurement.cost_secs for weight, best in bests if best is not None),
        "without_best": sum(best is None for _, best in bests),
        "secs": times[-1] - times[0],
        "longest_gap_secs": max((later - one for one, later in itertools.pairwise(times)), default=0.0),
    }


@click.command()
@click.option("--kills", type=int, required=True)
@click.option("--trials", type=int, required=True)
@click.option("--devices", type=int, default=4)
@click.option("--nodes", type=int, default=0)
@click.option("--candidate", "candidate_secs", type=float, default=CANDIDATE_SECS)
@click.option("--seed", type=int, default=0)
@click.option("--network", default=None)
def main(
    kills: int, trials: int, devices: int, nodes: int, candidate_secs: float, seed: int, network: str | None
) -> None:
    # Ray's sockets are below this folder, and the length of their paths is limited.
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        found = asyncio.run(play(kills, trials, devices, seed, network, Path(folder), nodes, candidate_secs))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
