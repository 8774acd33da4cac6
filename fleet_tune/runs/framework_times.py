"""Times of a compiled network, and of the same network in the frameworks that are installed on this machine."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.host.machine import processor_name
from devices.networks.frameworks.order import OURS, FrameworkOrder
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import RequestError, UserError
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.shapes.dimensions import in_words
from fleet_tune.base.shapes.shapes import Shapes, parse_shapes

if TYPE_CHECKING:
    from devices.networks.frontend import Network

FRAMEWORKS_FILE = "frameworks.json"
_MANIFEST = "manifest.json"
_SCHEMA = 1
_BLOCK_SECS = 0.5
_WARM_SECS = 1.0
_FEWER = 4
"""Divisor of the number of turns at extents of dynamic dimensions other than the typical ones."""
_ANSWER_SECS = 900.0
_SETTLE_SECS = 0.3
"""Pause before each block: thread pools spin for a while after their last run."""


@dataclass(frozen=True)
class FrameworkTime:
    """Time of the network in one framework."""

    name: str
    secs: float | None
    """Median seconds per run. None if the framework does not run the network."""
    low_secs: float | None = None
    """First decile of the seconds per run: a tenth of the runs is faster."""
    high_secs: float | None = None
    """Last decile of the seconds per run: a tenth of the runs is slower."""
    relative_error: float | None = None
    """Largest difference from the outputs of the network's own framework, relative to the largest output."""
    problem: str = ""
    """Reason why the framework does not run the network."""


@dataclass(frozen=True)
class ExtentTimes:
    """Times at other extents of the network's dynamic dimensions than the typical ones."""

    extent: str
    """The extents in words: ``n = 5``."""
    times: tuple[FrameworkTime, ...]
    """Times at this extent, in the order of :attr:`FrameworkTimes.times`."""

    @property
    def ratios(self) -> dict[str, float]:
        """Time of each framework at this extent, as a multiple of fleet-tune's, by its name."""
        return _ratios(self.times)


@dataclass(frozen=True)
class FrameworkTimes:
    """Times of a network in all frameworks, fleet-tune first."""

    network: str
    cpu: str
    threads: int
    unix_secs: float
    """Time at which they were measured, in seconds since 1970."""
    manifest: str
    """Digest of the manifest of the compiled network. The times are of this network alone."""
    times: tuple[FrameworkTime, ...]
    extent: str = ""
    """The typical extents of its dynamic dimensions, in words. Empty for fixed shapes."""
    others: tuple[ExtentTimes, ...] = ()
    """Times at other extents, ascending."""

    @property
    def ratios(self) -> dict[str, float]:
        """Time of each framework by its name, as a multiple of fleet-tune's."""
        return _ratios(self.times)


def _ratios(times: Sequence[FrameworkTime]) -> dict[str, float]:
    ours = times[0].secs
    return {} if not ours else {each.name: each.secs / ours for each in times[1:] if each.secs is not None}


def time_frameworks(
    spec: str,
    folder: Path,
    *,
    rounds: int,
    inputs: Path | None = None,
    trusted: bool = False,
    shapes: Shapes | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> FrameworkTimes:
    """Time the network that was compiled into ``folder``, and the same network in each framework that is installed.

    Each framework runs in its own process, with as many threads as this process has CPUs. They take turns: each has
    ``rounds`` turns of half a second. A network with dynamic dimensions is timed at the typical extents, and at the
    other extents of :attr:`Shapes.samples` with a quarter of the rounds. The times are written into the folder.

    Args:
        spec: the network, as it was tuned.
        folder: the output folder.
        rounds: number of turns of each framework.
        inputs: see :func:`devices.networks.frontend.load_network`.
        trusted: run code that is in a ``.pt2`` file.
        shapes: bounds of its dynamic dimensions, and weights. None for the shapes that it was tuned for.
        say: is called with each step.

    Raises :class:`RequestError` for a folder without a network that runs here, and :class:`NetworkError`.
    """
    from devices.networks.compiled.manifest import read_manifest
    from devices.networks.frameworks.array_file import write_arrays
    from devices.networks.frameworks.runners import installed
    from devices.networks.frontend import load_network, locate

    if not (folder / _MANIFEST).is_file():
        raise RequestError(f"{folder} has no compiled network", "name the output folder of 'fleet-tune tune'")
    timed, manifest = _digest(folder), read_manifest(folder)  # another network may be published while this one is timed
    if shapes is None and "bounds" in manifest:
        shapes = parse_shapes(manifest["bounds"])
    file, function = locate(spec)
    say("reading the network")
    network = load_network(spec, inputs, trusted, shapes)
    say("running the network in its framework")
    networks = _at_extents(network)
    threads = usable_cpus()
    names = (OURS, *installed(is_torch=bool(function) or file.suffix == ".pt2"))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-tune-frameworks-")))
        written: dict[str, str] = {}
        for at, (name, each) in enumerate(networks.items()):
            try:
                outputs = each.framework_outputs()
            except UserError as error:
                if at == 0:  # the typical extents
                    raise
                say(f"not timed with {name}: the framework refuses these inputs ({error.problem})")
                continue
            written[name] = write_arrays(work / f"arrays-{at}.npz", each.example_inputs, outputs)
        networks = {name: networks[name] for name in written}
        files = tuple(written.values())
        started: dict[str, _Side] = {}
        found: dict[str, list[Mapping[str, Any]]] = {}
        for name in names:
            say(f"starting {name}")
            order = FrameworkOrder(
                name, spec, str(folder.absolute()), files, threads, trusted, network.input_shapes, _WARM_SECS
            )
            side = stack.enter_context(_started(order, work))
            ready = side.answer()
            if "problem" in ready:
                found[name] = [ready] * len(files)
            else:
                started[name], found[name] = side, ready["sets"]
        if OURS not in started:
            problem = f"the network in {folder} does not run here: {found[OURS][0]['problem']}"
            raise RequestError(problem, "compile it for this machine: fleet-tune compile")
        times = []
        for at, extent in enumerate(networks):
            turns = rounds if at == 0 else max(1, rounds // _FEWER)
            samples: dict[str, list[float]] = {name: [] for name in started}
            for number in range(turns):
                say(f"timing{extent and f' with {extent}'}, round {number + 1} of {turns}")
                for name, side in started.items():
                    if "error" in found[name][at]:
                        time.sleep(_SETTLE_SECS)
                        samples[name] += side.block(_BLOCK_SECS, at)
            times.append(tuple(_time_of(name, samples.get(name), found[name][at]) for name in names))
    extents = list(networks)
    result = FrameworkTimes(
        network.name,
        processor_name(),
        threads,
        time.time(),
        timed,
        times[0],
        extents[0],
        tuple(ExtentTimes(*each) for each in zip(extents[1:], times[1:], strict=True)),
    )
    body = {"schema": _SCHEMA, **dataclasses.asdict(result)}
    write_atomically(folder / FRAMEWORKS_FILE, f"{json.dumps(body, indent=2)}\n".encode())
    return result


def _at_extents(network: Network) -> dict[str, Network]:
    """Return the network at the extents of its example inputs, then at the samples of its shapes. The keys are the
    extents in words, or an empty text if its shapes are fixed."""
    if network.shapes is None:
        return {"": network}
    others = [extents for extents in network.shapes.samples if extents != network.extents]
    return {in_words(extents): network.at(extents) for extents in (network.extents, *others)}


def read_times(folder: Path) -> FrameworkTimes | None:
    """Return the times of the network that is in an output folder now. None if there are none that can be read."""
    try:
        fields = json.loads((folder / FRAMEWORKS_FILE).read_text())
        if fields.pop("schema") != _SCHEMA:
            return None
        others = tuple(
            ExtentTimes(each["extent"], tuple(FrameworkTime(**time) for time in each["times"]))
            for each in fields.pop("others", ())
        )
        times = tuple(FrameworkTime(**each) for each in fields.pop("times"))
        found = FrameworkTimes(**fields, times=times, others=others)
        return found if found.manifest == _digest(folder) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _digest(folder: Path) -> str:
    return hashlib.blake2b((folder / _MANIFEST).read_bytes(), digest_size=16).hexdigest()


def _time_of(name: str, samples: list[float] | None, told: Mapping[str, Any]) -> FrameworkTime:
    if not samples:
        return FrameworkTime(name, None, problem=str(told.get("problem", "")))
    tenths = statistics.quantiles(samples, n=10)
    return FrameworkTime(name, statistics.median(samples), tenths[0], tenths[-1], float(told["error"]))


class _Side:
    """The process of one framework."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self) -> Mapping[str, Any]:
        """Return the next answer of the process."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_SECS)
        if not ready:
            return {"problem": f"it does not answer within {_ANSWER_SECS:g} s"}
        line = self._process.stdout.readline()
        if not line:
            return {"problem": f"its process ended with code {self._process.wait()}"}
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def block(self, secs: float, at: int) -> list[float]:
        """Run for ``secs`` on the set of inputs number ``at``, and return the seconds of each run; none if the process
        has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(secs, at, file=self._process.stdin, flush=True)
        runs: list[float] = self.answer().get("secs", [])
        return runs


@contextlib.contextmanager
def _started(order: FrameworkOrder, work: Path) -> Iterator[_Side]:
    """Start the process of a framework, and kill it at the end of the block."""
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
