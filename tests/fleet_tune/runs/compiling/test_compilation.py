"""What is published is right: real networks, compiled from stores that hold kernels that are wrong or crash."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tvm.s_tir import Schedule

import fleet_tune
from devices.builds.linking import LinkerError
from devices.client.session import SessionLostError
from devices.host.warm_process import ChildStartError
from devices.networks import compiled
from devices.networks.frontend import Network, load_network
from devices.networks.lowering import LoweredNetwork, compare, import_network
from devices.networks.network import Array
from devices.protocol import BuildFailure, BuildRequest
from devices.sketches.spaces import DesignSpace, parse_module
from devices.sketches.traces import full_text
from devices.targets import NATIVE, resolve_target
from devices.timing.in_place import InPlace, kernel_of
from examples.networks import mlp
from fleet_tune.config.fleet_file import DeviceConfig
from fleet_tune.domain import DeviceClass, Measurement, Outcome, Task
from fleet_tune.errors import DiskFullError, FleetTuneError, MemoryLackedError, NetworkRunError, RecordStoreError
from fleet_tune.records.stores.reader import RecordReader
from fleet_tune.records.stores.store import RecordStore
from fleet_tune.results import NetworkResult, Notice, Used
from fleet_tune.runs.cancellation import Cancellation, CancelledBuildError
from fleet_tune.runs.compiling import versions_in_place
from fleet_tune.runs.compiling.compilation import ToBuild, build_networks, check_records, compile_limit_secs
from fleet_tune.runs.compiling.places import Here, OnDevice, Place
from fleet_tune.runs.compiling.untuned_times import UntunedTimes
from fleet_tune.runs.preparing.first_choices import FirstChoices
from fleet_tune.runs.telling import Teller
from fleet_tune.search_task import SearchTask
from tests.helpers.devices import CPU, make_fingerprint
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate

CLASS = DeviceClass("cpu", resolve_target(NATIVE, 2))


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(mlp())


@pytest.fixture(scope="module")
def lowered(network: Network) -> LoweredNetwork:
    return import_network(network, CLASS)


@pytest.fixture(scope="module")
def entries(lowered: LoweredNetwork) -> tuple[SearchTask, ...]:
    return tuple(SearchTask(task, DesignSpace(task).sketches, CPU) for task in lowered.tasks)


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


def store(path: Path, lowered: LoweredNetwork, *traces: list[str]) -> Path:
    """Verified records of each task with these traces, the fastest first."""
    with RecordStore(path) as opened:
        for task, of_task in zip(lowered.tasks, traces, strict=True):
            for number, text in enumerate(of_task):
                opened.append([make_record(make_candidate(task, number), ok(1e-6 * (number + 1)), trace=text)])
    return path


class Board(OnDevice):
    """A device with a server of its own, on which what is tuned is faster."""

    def __init__(self, network: Network) -> None:
        super().__init__(DeviceConfig(name="board", threads=2), network.example_inputs)

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        assert min(super().measure_in_turn(first, second)) > 0
        return 1.0, 2.0


class Told(Teller):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def tell(self, doing: str) -> None:
        super().tell(doing)
        self.all.append(doing)


class Faked(Here):
    """This machine, with what is found there changed."""

    def __init__(self, network: Network, add: float = 0.0, times: tuple[float, float] = (1.0, 2.0)) -> None:
        super().__init__(network.example_inputs)
        self._add, self._times = add, times

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        return tuple(array + array.dtype.type(self._add) for array in super().outputs(folder))

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        assert first != second
        return self._times


def built(
    network: Network,
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    records: Path,
    place: Place,
    cancellation: Cancellation | None = None,
    **others: Any,
) -> NetworkResult:
    prints = {"cpu": make_fingerprint(CLASS)}
    what = ToBuild(network, {"cpu": lowered}, prints, entries, {"cpu": place}, records, **others)
    [result] = build_networks(what, records.parent, cancellation or Cancellation(), compiled)
    return result


def check_times(result: NetworkResult, lowered: LoweredNetwork, manifest: dict[str, Any]) -> None:
    """Every kernel is timed in its place, and the manifest says so."""
    times = result.in_network
    assert times is not None
    assert [(each.task_id, each.calls) for each in times.kernels] == [(task.id, task.weight) for task in lowered.tasks]
    assert all(each.secs > 0 for each in times.kernels)
    assert times.left_over_secs > 0, "a run is more than its kernels"
    written = manifest["in_network"]
    assert written.keys() == {"secs", "kernels", "others_secs", "left_over_secs", "alone_secs", "kernels_secs"}
    assert (written["secs"], written["left_over_secs"]) == (times.secs, times.left_over_secs)
    # Of three kernels that are called once or more, none of which takes no time.
    assert written["kernels_secs"] > sum(each.secs for each in times.kernels) * (1 - 1e-9)
    for each, entry in zip(times.kernels, manifest["in_network"]["kernels"], strict=True):
        assert (entry["task_id"], entry["secs"], entry["alone_secs"]) == (each.task_id, each.secs, each.alone_secs)
    alone = {entry["id"]: entry["best_secs"] for entry in manifest["tasks"]}
    assert {each.task_id: each.alone_secs for each in times.kernels} == alone


def published(network: Network, folder: Path) -> tuple[float, dict[str, Any]]:
    """How far the network in the folder is from its framework, and its manifest."""
    outputs = fleet_tune.load(folder)(*network.example_inputs)
    assert not (folder / ".staged").exists()
    return compare((outputs,), network.framework_outputs())[1], json.loads((folder / "manifest.json").read_text())


def test_wrong_kernels_and_kernels_that_crash_are_found_and_replaced(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    first, second, third = lowered.tasks
    right = trace(first)
    records = store(tmp_path / "records.db", lowered, [wrong(first), right], [crashing(second)], [trace(third)])
    result = built(network, lowered, entries, records, Board(network))

    error, manifest = published(network, tmp_path)
    assert error < 1e-5
    assert [entry["trace"] for entry in manifest["tasks"]] == [json.loads(right), None, json.loads(trace(third))]
    used = [(each.task, each.used) for each in result.fallbacks]
    assert used == [(first.workload.name, Used.RECORD), (second.workload.name, Used.UNSCHEDULED)]
    assert "relative error" in result.fallbacks[0].reason
    assert "process on the device ended" in result.fallbacks[1].reason
    assert manifest["fallbacks"][0]["reason"] == result.fallbacks[0].reason
    assert result.checked_on == manifest["checked_on"] == "board"
    check_times(result, lowered, manifest)  # as the device's server tells
    assert result.max_rel_error == pytest.approx(error)

    # What was found is durable: they are not chosen again.
    with RecordReader(records) as reader:
        assert reader.best(first.id).candidate == make_candidate(first, 1)  # type: ignore[union-attr]
        assert reader.best(second.id) is None
        marked = [each.measurement.outcome for each in reader if each.revision]
    assert sorted(marked) == [Outcome.RUN_ERROR, Outcome.WRONG_OUTPUT]


def test_a_kernel_that_crashes_on_this_machine_ends_no_process_of_ours(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, [], [], [crashing(lowered.tasks[2])])
    result = built(network, lowered, entries, records, Faked(network))
    assert "killed by SIG" in result.fallbacks[2].reason
    assert {each.used for each in result.fallbacks} == {Used.UNSCHEDULED}
    assert published(network, tmp_path)[0] < 1e-5
    assert result.checked_on == "this machine"


@pytest.mark.parametrize("described", [True, False], ids=["described", "not described"])
def test_tasks_without_a_record_get_the_analyzers_first_choice(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path, described: bool
) -> None:
    records = store(tmp_path / "records.db", lowered, [], [], [])
    if not described:  # of a run that had no trial
        entries = tuple(dataclasses.replace(entry, sketches=()) for entry in entries)
    by_id = {entry.task.id: entry for entry in entries}
    teller = Told()
    device = DeviceConfig(name="local", threads=2)
    supply = FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, teller=teller)
    result = built(network, lowered, entries, records, Faked(network), supplies={"cpu": supply}, teller=teller)
    assert not teller.notices
    first, last = teller.all.index("compiling the network with 3 tuned of 3 tasks"), len(teller.all)
    choices = teller.all[1:first]
    assert described or choices.pop(0) == "describing 3 tasks that need a kernel after all"
    assert {each.split()[0] for each in choices} == {"building", "measuring"}
    for task in lowered.tasks:
        assert any(task.workload.name in each for each in choices)
    assert choices[-1].endswith("(3 of 3 without a record)")
    assert teller.all[first + 1] == "comparing the network with its framework"
    assert "timing the kernels in the network" in teller.all[first:last]
    assert {each.used for each in result.fallbacks} == {Used.FIRST_CHOICE}
    assert len(result.fallbacks) == len(lowered.tasks)
    error, manifest = published(network, tmp_path)
    check_times(result, lowered, manifest)
    assert error < 1e-5
    assert all(entry["best_secs"] > 0 for entry in manifest["tasks"])
    with RecordReader(records) as reader:
        assert all(reader.best(task.id) is not None for task in lowered.tasks), "a run that resumes knows them"


def test_the_untuned_network_is_published_where_it_is_faster(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    result = built(network, lowered, entries, records, Faked(network, times=(2.0, 1.0)))
    assert (result.published, result.secs) == ("untuned", 1.0)
    error, manifest = published(network, tmp_path)
    assert error < 1e-5
    assert manifest["published"] == "untuned"
    assert [entry["trace"] for entry in manifest["tasks"]] == [None] * 3


class Alone(Here):
    """This machine, where no network is timed beside another."""

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        raise AssertionError(f"{first.name} is timed beside {second.name}")


def test_where_an_earlier_run_has_timed_the_untuned_network_a_far_faster_one_is_timed_alone(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    times, fingerprint = UntunedTimes(tmp_path / "cache"), make_fingerprint(CLASS)
    first = built(network, lowered, entries, records, Faked(network, times=(1.0, 1.5)), untuned_times=times)
    assert (first.published, first.tuned_secs, first.untuned_secs) == ("tuned", 1.0, 1.5)
    assert not first.untuned_earlier

    teller = Told()
    result = built(
        network, lowered, entries, records, Alone(network.example_inputs), untuned_times=times, teller=teller
    )
    assert result.tuned_secs is not None
    assert 0 < result.tuned_secs < 0.75
    assert (result.published, result.untuned_secs, result.untuned_earlier) == ("tuned", 1.5, True)
    assert result.torch_secs is not None
    assert not any("untuned" in each for each in teller.all)
    error, manifest = published(network, tmp_path)
    assert error < 1e-5
    assert manifest["measured"]["untuned_earlier"]
    check_times(result, lowered, manifest)

    # It is not far faster than this one was: both are timed, and what is found is kept.
    times.keep(lowered, fingerprint, "this machine", 1e-9)
    later = built(network, lowered, entries, records, Faked(network, times=(1.0, 2.5)), untuned_times=times)
    assert (later.tuned_secs, later.untuned_secs, later.untuned_earlier) == (1.0, 2.5, False)
    assert times.find(lowered, fingerprint, "this machine") == 2.5
    for other in (dataclasses.replace(fingerprint, threads=1), dataclasses.replace(fingerprint, cpu_model="another")):
        assert times.find(lowered, other, "this machine") is None
    assert times.find(lowered, fingerprint, "board") is None
    assert times.find(dataclasses.replace(lowered, fingerprint="another"), fingerprint, "this machine") is None


def test_what_cannot_be_timed_is_the_fault_of_no_kernel(
    network: Network,
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    times = UntunedTimes(tmp_path / "cache")
    times.keep(lowered, make_fingerprint(CLASS), "this machine", 10.0)
    tried = Faked.tried
    monkeypatch.setattr(Faked, "tried", lambda *given: tried(*given)._replace(times=None))
    result = built(network, lowered, entries, records, Faked(network), untuned_times=times)
    assert (result.published, result.tuned_secs, result.untuned_earlier) == ("tuned", 1.0, False)
    assert not result.fallbacks
    assert result.in_network is not None


def test_a_wrong_kernel_is_found_also_where_the_network_is_timed_in_the_same_process(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    first, *others = lowered.tasks
    right = [[trace(task)] for task in others]
    records = store(tmp_path / "records.db", lowered, [wrong(first), trace(first)], *right)
    times = UntunedTimes(tmp_path / "cache")
    times.keep(lowered, make_fingerprint(CLASS), "this machine", 10.0)
    result = built(network, lowered, entries, records, Alone(network.example_inputs), untuned_times=times)
    assert (result.published, result.untuned_earlier) == ("tuned", True)
    assert [(each.task, each.used) for each in result.fallbacks] == [(first.workload.name, Used.RECORD)]
    assert published(network, tmp_path)[0] < 1e-5


class Timed(Faked):
    """This machine, where the versions of the kernels take these times in their places, and the networks of several
    versions these. ``secs``: by the number of the network, in the order in which they are compiled."""

    def __init__(
        self, network: Network, lowered: LoweredNetwork, secs: list[float], whole: tuple[float, float]
    ) -> None:
        super().__init__(network)
        self._names = {digest: name for name, digest in lowered.workloads.items()}
        self._tasks, self._secs, self._whole = lowered.tasks, secs, whole

    def in_place_in_turn(self, folders: Sequence[Path], rounds: int) -> Iterator[list[InPlace]]:
        first = self._names[self._tasks[0].workload.hash]
        for timed in super().in_place_in_turn(folders, rounds):
            yield [
                dataclasses.replace(
                    each, kernel_secs={name: secs if kernel_of(name) == first else 1.0 for name in each.kernel_secs}
                )
                for each, secs in zip(timed, self._secs, strict=True)
            ]

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        return self._whole if second.name == "chosen" else super().measure_in_turn(first, second)


@pytest.mark.parametrize(
    ("whole", "spare_secs", "number"),
    [((2.0, 1.0), math.inf, 2), ((1.0, 1.0), math.inf, 0), ((2.0, 1.0), 0.0, 0)],
    ids=["faster", "not faster as a whole", "no time for it"],
)
def test_of_records_that_are_nearly_as_good_the_fastest_in_the_network_is_used(
    network: Network,
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[float, float],
    spare_secs: float,
    number: int,
) -> None:
    monkeypatch.setattr(versions_in_place, "ROUNDS", 3)  # each takes a second and more
    with RecordStore(tmp_path / "records.db") as opened:
        for task in lowered.tasks:
            for at, cost_secs in enumerate((1.00e-6, 1.05e-6, 1.1e-6, 1.2e-6)):
                candidate = make_candidate(task, at)
                opened.append([make_record(candidate, ok(cost_secs), trace=trace(task, rows=at + 1))])
    place = Timed(network, lowered, [1.0, 1.1, 0.8], whole)  # the rounds agree
    result = built(network, lowered, entries, tmp_path / "records.db", place, spare_secs=spare_secs)
    assert result.published == "tuned"
    error, manifest = published(network, tmp_path)
    assert error < 1e-5
    used = {entry["id"]: entry["decisions"] for entry in manifest["tasks"]}
    assert used == {task.id: [number if task is lowered.tasks[0] else 0] for task in lowered.tasks}
    chosen = [(each.task_id, pytest.approx(each.ratio), each.rounds) for each in result.chosen_in_place]
    assert chosen == ([(lowered.tasks[0].id, 0.8, 3)] if number else [])
    kept = [{**dataclasses.asdict(each), "compared": list(each.compared)} for each in result.chosen_in_place]
    assert manifest["chosen_in_place"] == kept
    assert manifest["measured"]["max_rel_error"] < 1e-5
    # What was chosen is kept, and whoever compiles next uses it, with no time to choose anew.
    again = built(network, lowered, entries, tmp_path / "records.db", place, spare_secs=0.0)
    assert again.chosen_in_place == result.chosen_in_place
    entry = json.loads((tmp_path / "manifest.json").read_text())["tasks"][0]
    assert (entry["id"], entry["decisions"]) == (lowered.tasks[0].id, [number])


class FullDisk:
    """A compiler for which there is no space when it compiles into this folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def compile_network(self, lowered: LoweredNetwork, best: Any, out: Path, manifest_extra: Any = None) -> Path:
        if out.name == self._folder:
            raise DiskFullError("no space left", "free some")
        return compiled.compile_network(lowered, best, out, manifest_extra)


@pytest.mark.parametrize("what", ["crashes", "version-1", "chosen"])
def test_a_version_that_cannot_be_used_takes_nothing_from_the_network(
    network: Network,
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """One that crashes in it, or for which there is no space."""
    monkeypatch.setattr(versions_in_place, "ROUNDS", 3)
    with RecordStore(tmp_path / "records.db") as opened:
        for task in lowered.tasks:
            for at, text in enumerate((trace(task), crashing(task) if what == "crashes" else trace(task, rows=2))):
                opened.append([make_record(make_candidate(task, at), ok(1e-6 * (1 + at / 100)), trace=text)])
    told = Told()
    place = Faked(network) if what == "crashes" else Timed(network, lowered, [1.0, 0.8], (2.0, 1.0))
    prints = {"cpu": make_fingerprint(CLASS)}
    records = tmp_path / "records.db"
    plan = ToBuild(network, {"cpu": lowered}, prints, entries, {"cpu": place}, records, teller=told)
    [result] = build_networks(plan, tmp_path, Cancellation(), FullDisk(what))
    assert (result.published, result.fallbacks, result.chosen_in_place) == ("tuned", (), ())
    [notice] = told.notices
    assert ("version of its kernels" if what == "version-1" else "not chosen by their time") in notice.text
    assert published(network, tmp_path)[0] < 1e-5


def test_a_network_that_is_wrong_without_schedules_is_not_published_and_no_kernel_is_blamed(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    result = built(network, lowered, entries, records, Faked(network, add=1.0))
    assert result.published == "nothing"
    assert "without any schedule: relative error" in result.problem
    assert not (tmp_path / "manifest.json").exists()
    assert not (tmp_path / "network.so").exists()
    with RecordReader(records) as reader:
        assert all(record.revision == 0 for record in reader)


def failing_where(monkeypatch: pytest.MonkeyPatch, error: Exception, at_fault: Callable[[Path, Any], bool]) -> None:
    """Compiling fails where ``at_fault`` says so of the folder and the traces."""
    compile_network = compiled.compile_network

    def fail(lowered: LoweredNetwork, best: Any, out: Path, *others: Any) -> Path:
        if at_fault(out, best):
            raise error
        return compile_network(lowered, best, out, *others)

    monkeypatch.setattr(compiled, "compile_network", fail)


@pytest.mark.parametrize(
    "error",
    [
        LinkerError("no linker found", "install binutils"),
        MemoryLackedError("the network cannot be compiled: killed by SIGKILL", "free some memory"),
        ChildStartError("the process that compiles networks did not start"),
    ],
)
def test_what_this_machine_lacks_is_blamed_on_no_record(
    error: FleetTuneError,
    network: Network,
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_where(monkeypatch, error, lambda *_: True)
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    with pytest.raises(type(error), match=str(error)):
        built(network, lowered, entries, records, Faked(network))
    with RecordReader(records) as reader:
        assert all(record.revision == 0 for record in reader)


def test_the_time_for_compiling_follows_from_the_builds_of_the_records(lowered: LoweredNetwork, tmp_path: Path) -> None:
    def limit_secs(name: str, *build_secs: float) -> float:
        path = tmp_path / name
        with RecordStore(path) as opened:
            for task, secs in zip(lowered.tasks, build_secs, strict=False):
                measurement = dataclasses.replace(ok(1e-6), build_secs=secs)
                opened.append([make_record(make_candidate(task), measurement, trace=trace(task))])
        return compile_limit_secs([lowered], path)

    assert limit_secs("quick.db", 0.5, 1.0, 2.0) == 120.0
    assert limit_secs("slow.db", 20.0, 30.0, 50.0) == pytest.approx(1000.0)
    assert limit_secs("unknown.db", 20.0) == pytest.approx(400.0)  # ten seconds for each of the two others


class Ending(Faked):
    """The building is cancelled while the network, which is right, is timed."""

    def __init__(self, network: Network, cancellation: Cancellation) -> None:
        super().__init__(network)
        self._cancellation = cancellation

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        self._cancellation.cancel()
        return super().measure_in_turn(first, second)


def test_nothing_is_published_once_the_building_is_cancelled(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    cancellation = Cancellation()
    with pytest.raises(CancelledBuildError):
        built(network, lowered, entries, records, Ending(network, cancellation), cancellation)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("records.db")] == []


class Crashing(Faked):
    """Networks in the folders ``crashing`` (``network``, the tuned one, and ``untuned``) are right, and crash when
    they are timed."""

    def __init__(self, network: Network, *crashing: str) -> None:
        super().__init__(network)
        self._crashing = crashing

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        return self.measure_secs(first), self.measure_secs(second)

    def measure_secs(self, folder: Path) -> float:
        if folder.name in self._crashing:
            raise NetworkRunError("killed by SIGSEGV")
        return 3.0


def test_a_tuned_network_that_crashes_when_it_is_timed_is_not_published(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    result = built(network, lowered, entries, records, Crashing(network, "network"))
    assert (result.published, result.secs) == ("untuned", 3.0)
    assert result.problem == "the tuned network fails when it is timed: killed by SIGSEGV"
    error, manifest = published(network, tmp_path)
    assert error < 1e-5
    assert manifest["problem"] == result.problem
    assert [entry["trace"] for entry in manifest["tasks"]] == [None] * 3


def test_an_untuned_network_that_crashes_takes_nothing_from_the_tuned_one(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    teller = Teller(60.0, [Notice(4, 5.0, "of the tuning")])
    result = built(network, lowered, entries, records, Crashing(network, "untuned"), teller=teller)
    assert (result.published, result.tuned_secs, result.untuned_secs) == ("tuned", 3.0, None)
    before, notice = teller.notices
    assert (before.number, notice.number) == (4, 5)
    assert notice.at_secs >= 60.0
    assert notice.text == "the network of cpu is not compared with the untuned one: NetworkRunError: killed by SIGSEGV"
    assert published(network, tmp_path)[0] < 1e-5


@pytest.mark.parametrize("error", [DiskFullError("no space left", "free some"), RuntimeError("LLVM ERROR")])
def test_nor_does_one_that_cannot_be_compiled(
    network: Network,
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    failing_where(monkeypatch, error, lambda out, _: out.name == "untuned")
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    result = built(network, lowered, entries, records, Crashing(network))
    assert (result.published, result.tuned_secs, result.untuned_secs) == ("tuned", 3.0, None)
    assert published(network, tmp_path)[0] < 1e-5


class Broken(Faked):
    """A machine on which something unexpected happens."""

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        raise ValueError(f"nobody expected this of {folder}")


def test_what_goes_wrong_with_one_class_takes_nothing_from_the_others(
    network: Network, lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    both = {"broken": lowered, "cpu": lowered}
    prints = dict.fromkeys(both, make_fingerprint(CLASS))
    places = {"broken": Broken(network), "cpu": Faked(network)}
    what = ToBuild(network, both, prints, entries, places, records)
    broken, right = build_networks(what, tmp_path, Cancellation(), compiled)
    assert (broken.device_class, broken.published) == ("broken", "nothing")
    assert "nobody expected this" in broken.problem
    assert right.published == "tuned"
    assert published(network, tmp_path / "cpu")[0] < 1e-5

    with pytest.raises(ValueError, match="nobody expected this"):
        built(network, lowered, entries, records, Broken(network))


def test_a_fault_of_the_first_choices_leaves_the_tasks_as_they_are(
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    records = store(tmp_path / "records.db", lowered, [], [], [])
    by_id = {entry.task.id: entry for entry in entries}
    device = DeviceConfig(name="local", threads=2)
    FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, budget_secs=0.0)(list(by_id))
    monkeypatch.setattr("fleet_tune.runs.preparing.first_choices.opened", refuse)
    teller = Teller()
    FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, teller=teller)(list(by_id))
    [notice] = teller.notices
    assert notice.text == "no first choices for 3 tasks: OSError: [Errno 28] No space left on device"
    with RecordReader(records) as reader:
        assert not list(reader)


def test_first_choices_end_with_their_time(
    lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that the end of the time cuts short is no record, and none is begun after it."""
    asked: list[float] = []

    def build(_: Any, request: BuildRequest) -> BuildFailure:
        asked.append(request.timeout_secs)
        time.sleep(request.timeout_secs)
        return BuildFailure(request.task.id, request.candidate, "", Measurement(Outcome.BUILD_TIMEOUT))

    monkeypatch.setattr("devices.builds.builder.BuildWorker.build", build)
    records = store(tmp_path / "records.db", lowered, [], [], [])
    by_id = {entry.task.id: entry for entry in entries}
    device = DeviceConfig(name="local", threads=2)
    FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, budget_secs=2.0)(list(by_id))
    assert all(secs <= 2.0 for secs in asked)
    with RecordReader(records) as reader:
        assert not list(reader)


def test_what_could_not_be_checked_is_published_and_told(
    network: Network,
    lowered: LoweredNetwork,
    entries: tuple[SearchTask, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: Any) -> Any:
        raise SessionLostError("nobody listens")

    monkeypatch.setattr("devices.client.rpc_device.LoadedNetwork", lost)
    records = store(tmp_path / "records.db", lowered, *([trace(task)] for task in lowered.tasks))
    result = built(network, lowered, entries, records, Board(network))
    assert (result.checked_on, result.tuned_secs, result.published) == ("", None, "tuned")
    assert result.unchecked == "device board did not answer: nobody listens"
    error, manifest = published(network, tmp_path)
    assert error < 1e-5
    assert manifest["unchecked"] == result.unchecked


def test_a_store_without_anything_of_the_network_is_told(
    lowered: LoweredNetwork, entries: tuple[SearchTask, ...], tmp_path: Path
) -> None:
    records = store(tmp_path / "records.db", lowered, [], [], [])
    with pytest.raises(RecordStoreError, match="no verified record of this network for cpu"):
        check_records({"cpu": lowered}, entries, records)
    store(records, lowered, [trace(lowered.tasks[0])], [], [])
    check_records({"cpu": lowered}, entries, records)
