"""A small network to compile, records of it that are right or not, and places to try it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tvm.s_tir import Schedule

import fleet_tune
from devices.networks.compiled import network_folder
from devices.networks.frontend import Network
from devices.networks.network import Array
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network
from devices.sketches.spaces import DesignSpace, parse_module
from devices.sketches.traces import full_text
from devices.targets import NATIVE, resolve_target
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import DeviceClass, Task
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import NetworkResult
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.cancellation import Cancellation
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.publishing.compile_request import CompileRequest
from fleet_tune.runs.publishing.device_runner import DeviceNetworkRunner
from fleet_tune.runs.publishing.network_runners import LocalNetworkRunner, NetworkRunner
from fleet_tune.runs.publishing.networks import publish_networks
from tests.helpers.devices import CPU, make_fingerprint
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate

CLASS = DeviceClass("cpu", resolve_target(NATIVE, 2))


def trace(task: Task, layout: Callable[[Any, Any], Any] | None = None, rows: int = 1) -> str:
    """A schedule of a matrix product: so many of its rows at a time on all cores. ``layout``: where its result lies,
    which TVM is told to be one to one."""
    schedule = Schedule(parse_module(task.workload.module), debug_mask="none")
    block = schedule.get_sblock("matmul")
    if layout is None:
        outer, _ = schedule.split(schedule.get_loops(block)[0], (None, rows))
        schedule.parallel(outer)
    else:
        schedule.transform_layout(block, ("write", 0), layout, assume_injective_transform=True)
    return full_text(schedule.trace)


def wrong(task: Task) -> str:
    """Two columns at one place."""
    return trace(task, lambda i, j: (i, j // 2))


def crashing(task: Task) -> str:
    """Far out of any memory."""
    return trace(task, lambda i, j: (i, j * 2**54))


class Board(DeviceNetworkRunner):
    """A device with a server of its own, on which what is tuned is faster."""

    def __init__(self, network: Network) -> None:
        super().__init__(DeviceConfig(name="board", threads=2), network.example_inputs)

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        assert min(super().measure_in_turn(first, second)) > 0
        return 1.0, 2.0


class Told(CompileProgress):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def report_step(self, doing: str) -> None:
        super().report_step(doing)
        self.all.append(doing)


class Faked(LocalNetworkRunner):
    """This machine, with what is found there changed."""

    def __init__(self, network: Network, add: float = 0.0, times: tuple[float, float] = (1.0, 2.0)) -> None:
        super().__init__(network.example_inputs)
        self._add, self._times = add, times

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        return tuple(array + array.dtype.type(self._add) for array in super().outputs(folder))

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        assert first != second
        return self._times


def failing_where(monkeypatch: pytest.MonkeyPatch, error: Exception, at_fault: Callable[[Path, Any], bool]) -> None:
    """Compiling fails where ``at_fault`` says so of the folder and the traces."""
    compile_network = network_folder.compile_network

    def fail(lowered: LoweredNetwork, best: Any, out: Path, *others: Any) -> Path:
        if at_fault(out, best):
            raise error
        return compile_network(lowered, best, out, *others)

    monkeypatch.setattr(network_folder, "compile_network", fail)


@dataclass(frozen=True)
class Example:
    """A network as its framework has it, lowered for :data:`CLASS`, and what is searched for its tasks."""

    network: Network
    lowered: LoweredNetwork
    entries: tuple[SearchTask, ...]

    @classmethod
    def of(cls, network: Network) -> Example:
        lowered = import_network(network, CLASS)
        entries = tuple(SearchTask(task, DesignSpace(task).sketches, CPU) for task in lowered.tasks)
        return cls(network, lowered, entries)

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.lowered.tasks

    def store(self, path: Path, *traces: list[str]) -> Path:
        """Verified records of each task with these traces, the fastest first."""
        with RecordStore(path) as opened:
            for task, of_task in zip(self.tasks, traces, strict=True):
                for number, text in enumerate(of_task):
                    opened.append([make_record(make_candidate(task, number), ok(1e-6 * (number + 1)), trace=text)])
        return path

    def right(self, path: Path) -> Path:
        """One record of each task, which is right."""
        return self.store(path, *([trace(task)] for task in self.tasks))

    def built(
        self,
        records: Path,
        place: NetworkRunner,
        cancellation: Cancellation | None = None,
        compiler: Any = network_folder,
        **others: Any,
    ) -> NetworkResult:
        """The network compiled from these records, beside them. ``others``: of :class:`CompileRequest`."""
        prints = {"cpu": make_fingerprint(CLASS)}
        what = CompileRequest(
            self.network, {"cpu": self.lowered}, prints, self.entries, {"cpu": place}, records, **others
        )
        [result] = publish_networks(what, records.parent, cancellation or Cancellation(), compiler)
        return result

    def published(self, folder: Path) -> tuple[float, dict[str, Any]]:
        """Return the distance of the network in the folder from its framework, and its manifest."""
        outputs = fleet_tune.load(folder)(*self.network.example_inputs)
        assert not (folder / ".staged").exists()
        error = compare((outputs,), self.network.framework_outputs())[1]
        return error, json.loads((folder / "manifest.json").read_text())

    def check_times(self, result: NetworkResult, manifest: dict[str, Any]) -> None:
        """Every kernel is timed in its place, and the manifest says so."""
        times = result.in_network
        assert times is not None
        assert [(each.task_id, each.calls) for each in times.kernels] == [(task.id, task.weight) for task in self.tasks]
        assert times.secs == result.secs
        assert times.kernels_secs + times.left_over_secs == pytest.approx(times.secs), "the parts add up"
        written = manifest["in_network"]
        assert written.keys() == {"secs", "kernels", "others_secs", "left_over_secs", "alone_secs", "kernels_secs"}
        assert (written["secs"], written["left_over_secs"]) == (times.secs, times.left_over_secs)
        assert written["kernels_secs"] >= sum(each.secs for each in times.kernels) * (1 - 1e-9)
        for each, entry in zip(times.kernels, manifest["in_network"]["kernels"], strict=True):
            assert (entry["task_id"], entry["secs"], entry["alone_secs"]) == (each.task_id, each.secs, each.alone_secs)
        alone = {entry["id"]: entry["best_secs"] for entry in manifest["tasks"]}
        assert {each.task_id: each.alone_secs for each in times.kernels} == alone
