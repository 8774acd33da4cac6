"""Times of a compiled network beside the frameworks that are installed on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices.host.machine import processor_name
from devices.networks.frameworks.order import OURS, FrameworkOrder
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.files.atomic_file import write_atomically

FRAMEWORKS_FILE = "frameworks.json"
_MANIFEST = "manifest.json"
_SCHEMA = 1
_BLOCK_SECS = 0.5
_ANSWER_SECS = 900.0
_SETTLE_SECS = 0.3
"""Pause before each block: thread pools spin for a while after their last run."""


@dataclass(frozen=True)
class FrameworkTime:
    """Time of the network in one framework."""

    name: str
    secs: float | None
    """Median seconds per run; None where it does not run."""
    low_secs: float | None = None
    """A tenth of the runs is faster."""
    high_secs: float | None = None
    """A tenth of the runs is slower."""
    relative_error: float | None = None
    """Largest difference from what the network's own framework computes, by the largest output."""
    problem: str = ""
    """Why it does not run."""


@dataclass(frozen=True)
class FrameworkTimes:
    """Times of the network in all of them, fleet-tune first."""

    network: str
    cpu: str
    threads: int
    unix_secs: float
    """When they were taken."""
    manifest: str
    """Digest of the manifest of the compiled network: another one has other times."""
    times: tuple[FrameworkTime, ...]

    @property
    def ratios(self) -> dict[str, float]:
        """Time of each framework by its name, as a multiple of fleet-tune's."""
        ours = self.times[0].secs
        return {} if not ours else {each.name: each.secs / ours for each in self.times[1:] if each.secs is not None}


def time_frameworks(
    spec: str,
    folder: Path,
    *,
    rounds: int,
    inputs: Path | None = None,
    trusted: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> FrameworkTimes:
    """Time the network that was compiled into ``folder``, and the same network in each framework that is installed.

    Each runs in a process of its own with as many threads as this process has CPUs; they take turns, ``rounds`` times
    half a second each. The times are written into the folder.

    Args:
        spec: the network, as it was tuned.
        folder: the output folder.
        rounds: turns of each.
        inputs: as of :func:`devices.networks.frontend.load_network`.
        trusted: run code that is in a ``.pt2`` file.
        say: is told each step.

    Raises :class:`RequestError` for a folder without a network that runs here, and :class:`NetworkError`.
    """
    import numpy as np

    from devices.networks.frameworks.runners import installed
    from devices.networks.frontend import load_network, locate

    if not (folder / _MANIFEST).is_file():
        raise RequestError(f"{folder} has no compiled network", "name the output folder of 'fleet-tune tune'")
    file, function = locate(spec)
    say("reading the network")
    network = load_network(spec, inputs, trusted)
    say("running the network in its framework")
    expected = network.framework_outputs()
    threads = usable_cpus()
    names = (OURS, *installed(is_torch=bool(function) or file.suffix == ".pt2"))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-tune-frameworks-")))
        arrays = work / "arrays.npz"
        np.savez(arrays, **_named("input", network.example_inputs), **_named("output", expected))
        started: dict[str, _Side] = {}
        errors: dict[str, float] = {}
        problems: dict[str, str] = {}
        for name in names:
            say(f"starting {name}")
            side = stack.enter_context(
                _started(FrameworkOrder(name, spec, str(folder.absolute()), str(arrays), threads, trusted), work)
            )
            ready = side.answer()
            if "problem" in ready:
                problems[name] = str(ready["problem"])
            else:
                started[name], errors[name] = side, float(ready["error"])
        if OURS in problems:
            problem = f"the network in {folder} does not run here: {problems[OURS]}"
            raise RequestError(problem, "compile it for this machine: fleet-tune compile")
        samples: dict[str, list[float]] = {name: [] for name in started}
        for number in range(rounds):
            say(f"timing, round {number + 1} of {rounds}")
            for name, side in started.items():
                time.sleep(_SETTLE_SECS)
                samples[name] += side.block(_BLOCK_SECS)
    found = FrameworkTimes(
        network.name,
        processor_name(),
        threads,
        time.time(),
        _digest(folder),
        tuple(_time_of(name, samples.get(name), errors.get(name), problems.get(name, "")) for name in names),
    )
    body = {"schema": _SCHEMA, **dataclasses.asdict(found)}
    write_atomically(folder / FRAMEWORKS_FILE, f"{json.dumps(body, indent=2)}\n".encode())
    return found


def read_times(folder: Path) -> FrameworkTimes | None:
    """Return the times of the network that is in an output folder now; None where there are none that can be read."""
    try:
        fields = json.loads((folder / FRAMEWORKS_FILE).read_text())
        if fields.pop("schema") != _SCHEMA:
            return None
        times = tuple(FrameworkTime(**each) for each in fields.pop("times"))
        found = FrameworkTimes(**fields, times=times)
        return found if found.manifest == _digest(folder) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _digest(folder: Path) -> str:
    return hashlib.blake2b((folder / _MANIFEST).read_bytes(), digest_size=16).hexdigest()


def _named(kind: str, arrays: tuple[Any, ...]) -> dict[str, Any]:
    return {f"{kind}-{at}": array for at, array in enumerate(arrays)}


def _time_of(name: str, samples: list[float] | None, error: float | None, problem: str) -> FrameworkTime:
    if not samples:
        return FrameworkTime(name, None, problem=problem)
    tenths = statistics.quantiles(samples, n=10)
    return FrameworkTime(name, statistics.median(samples), tenths[0], tenths[-1], error)


class _Side:
    """The process of one framework."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self) -> Mapping[str, Any]:
        """Return its next answer."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_SECS)
        if not ready:
            return {"problem": f"it does not answer within {_ANSWER_SECS:g} s"}
        line = self._process.stdout.readline()
        if not line:
            return {"problem": f"its process ended with code {self._process.wait()}"}
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def block(self, secs: float) -> list[float]:
        """Run for so long, and return the seconds of each run; none where its process has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(secs, file=self._process.stdin, flush=True)
        runs: list[float] = self.answer().get("secs", [])
        return runs


@contextlib.contextmanager
def _started(order: FrameworkOrder, work: Path) -> Iterator[_Side]:
    """Start the process of a framework, and end it with the block."""
    file = work / f"{order.framework}.json"
    file.write_text(json.dumps(dataclasses.asdict(order)))
    threads = str(order.threads)
    process = subprocess.Popen(
        [sys.executable, "-m", "devices.networks.frameworks.child", str(file), str(os.getpid())],
        env={**os.environ, "OMP_NUM_THREADS": threads, "TVM_NUM_THREADS": threads},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield _Side(process)
    finally:
        process.kill()
        process.wait()
