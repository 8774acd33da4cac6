"""The fastest kernel in the network is used, if kernels are nearly equal alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices.networks.checks.special_inputs import special_inputs_of
from devices.networks.compiled import network_folder
from devices.networks.network import Array
from devices.networks.processes.fresh_process import OtherInputs
from devices.networks.tasks.lowering import LoweredNetwork
from devices.timing.in_network import InNetworkTimes, kernel_of
from fleet_tune.base.errors import DiskFullError
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.publishing import versions_in_network
from fleet_tune.runs.publishing.incumbents import Incumbents
from policies.analysis.cpu.fewer_rows import time_over_rows
from policies.space.sampling import sample
from tests.helpers.compiling import Example, Faked, Told, crashing, trace
from tests.helpers.devices import CPU
from tests.helpers.dynamic_rows import over_rows
from tests.helpers.network_worker import run_networks_here
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task


class Timed(Faked):
    """This machine, where the versions of the kernels take these times in their places, and the networks of several
    versions these. ``secs``: by the number of the network, in the order in which they are compiled."""

    def __init__(self, example: Example, secs: list[float], whole: tuple[float, float]) -> None:
        super().__init__(example.network)
        self._names = {digest: name for name, digest in example.lowered.workloads.items()}
        self._tasks, self._secs, self._whole = example.tasks, secs, whole

    def kernel_times_interleaved(self, folders: Sequence[Path], rounds: int) -> Iterator[list[InNetworkTimes]]:
        first = self._names[self._tasks[0].workload.hash]
        for timed in super().kernel_times_interleaved(folders, rounds):
            yield [
                dataclasses.replace(
                    each, kernel_secs={name: secs if kernel_of(name) == first else 1.0 for name in each.kernel_secs}
                )
                for each, secs in zip(timed, self._secs, strict=True)
            ]

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        return self._whole if second.name == "chosen" else super().measure_in_turn(first, second)


@pytest.mark.usefixtures("networks_run_here")
@pytest.mark.parametrize(
    ("whole", "spare_secs", "number"),
    [((2.0, 1.0), math.inf, 2), ((1.0, 1.0), math.inf, 0), ((2.0, 1.0), 0.0, 0)],
    ids=["faster", "not faster as a whole", "no time for it"],
)
def test_of_records_that_are_nearly_as_good_the_fastest_in_the_network_is_used(
    example: Example,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[float, float],
    spare_secs: float,
    number: int,
) -> None:
    monkeypatch.setattr(versions_in_network, "ROUNDS", 3)  # each takes a second and more
    with RecordStore(tmp_path / "records.db") as opened:
        for task in example.tasks:
            for at, cost_secs in enumerate((1.00e-6, 1.05e-6, 1.1e-6, 1.2e-6)):
                candidate = make_candidate(task, at)
                opened.append([make_record(candidate, ok(cost_secs), trace=trace(task, rows=at + 1))])
    place = Timed(example, [1.0, 1.1, 0.8], whole)  # the rounds agree
    result = example.built(tmp_path / "records.db", place, spare_secs=spare_secs)
    assert result.published == "tuned"
    error, manifest = example.published(tmp_path)
    assert error < 1e-5
    used = {entry["id"]: entry["decisions"] for entry in manifest["tasks"]}
    assert used == {task.id: [number if task is example.tasks[0] else 0] for task in example.tasks}
    chosen = [(each.task_id, pytest.approx(each.ratio), each.rounds) for each in result.chosen_in_network]
    assert chosen == ([(example.tasks[0].id, 0.8, 3)] if number else [])
    kept = [{**dataclasses.asdict(each), "compared": list(each.compared)} for each in result.chosen_in_network]
    assert manifest["chosen_in_network"] == kept
    assert manifest["measured"]["max_rel_error"] < 1e-5
    if spare_secs:  # without, this is what was just done
        # What was chosen is kept, and whoever compiles next uses it, with no time to choose anew.
        again = example.built(tmp_path / "records.db", place, spare_secs=0.0)
        assert again.chosen_in_network == result.chosen_in_network
        entry = json.loads((tmp_path / "manifest.json").read_text())["tasks"][0]
        assert (entry["id"], entry["decisions"]) == (example.tasks[0].id, [number])


class LosingNan(Timed):
    """The network of the versions that are faster in it loses NaN."""

    def __init__(self, example: Example, secs: list[float], whole: tuple[float, float]) -> None:
        super().__init__(example, secs, whole)
        self._others = OtherInputs(tuple(special_inputs_of(example.network).values()))

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        outputs = super().outputs(folder)
        if folder.name == "chosen":
            self.special_outputs = [tuple(np.nan_to_num(each) for each in found) for found in self.special_outputs]
        return outputs


@pytest.mark.usefixtures("networks_run_here")
def test_versions_that_lose_nan_are_not_used(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions_in_network, "ROUNDS", 3)
    with RecordStore(tmp_path / "records.db") as opened:
        for task in example.tasks:
            for at, cost_secs in enumerate((1.00e-6, 1.05e-6)):
                opened.append([make_record(make_candidate(task, at), ok(cost_secs), trace=trace(task, rows=at + 1))])
    told = Told()
    result = example.built(tmp_path / "records.db", LosingNan(example, [1.0, 0.8], (2.0, 1.0)), progress=told)
    assert (result.published, result.special, result.fallbacks, result.chosen_in_network) == ("tuned", "", (), ())
    [notice] = told.notices
    assert "finite where the framework's are NaN" in notice.text
    assert all(entry["decisions"] == [0] for entry in example.published(tmp_path)[1]["tasks"])


class FullDisk:
    """A compiler for which there is no space when it compiles into this folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def compile_network(self, lowered: LoweredNetwork, best: Any, out: Path, manifest_extra: Any = None) -> Path:
        if out.name == self._folder:
            raise DiskFullError("no space left", "free some")
        return network_folder.compile_network(lowered, best, out, manifest_extra)


@pytest.mark.long
@pytest.mark.parametrize("what", ["crashes", "version-1", "chosen"])
def test_a_version_that_cannot_be_used_takes_nothing_from_the_network(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One that crashes in it, or for which there is no space."""
    monkeypatch.setattr(versions_in_network, "ROUNDS", 3)
    if what != "crashes":
        run_networks_here(monkeypatch)
    with RecordStore(tmp_path / "records.db") as opened:
        for task in example.tasks:
            for at, text in enumerate((trace(task), crashing(task) if what == "crashes" else trace(task, rows=2))):
                opened.append([make_record(make_candidate(task, at), ok(1e-6 * (1 + at / 100)), trace=text)])
    told = Told()
    place = Faked(example.network) if what == "crashes" else Timed(example, [1.0, 0.8], (2.0, 1.0))
    result = example.built(tmp_path / "records.db", place, compiler=FullDisk(what), progress=told)
    assert (result.published, result.fallbacks, result.chosen_in_network) == ("tuned", (), ())
    [notice] = told.notices
    assert ("version of its kernels" if what == "version-1" else "not chosen by their time") in notice.text
    assert example.published(tmp_path)[0] < 1e-5


def test_records_over_dynamic_rows_are_near_by_the_time_of_all_numbers_of_rows(tmp_path: Path) -> None:
    """Schedules that leave a thread idle for few rows take 4/3 of the seconds of the most rows over all."""
    task, sketch = make_task(), over_rows(0.5)
    busy, idle = (2, 8, 4, 2, 16), (2, 8, 4, 1, 32)
    rows = sample(sketch, 99, np.random.default_rng(0))
    times = dict(zip(map(tuple, rows.tolist()), time_over_rows(sketch, rows, CPU).tolist(), strict=True))
    others = [each for each, time in times.items() if time == 1 and each != busy]
    idles = [each for each, time in times.items() if time == pytest.approx(4 / 3) and each != idle]

    def near(*measured: tuple[tuple[int, ...], float]) -> list[tuple[int, ...]]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
        with RecordStore(path) as store:
            store.put_task(task)
            store.append(
                [
                    make_record(make_candidate(task, *decisions, sketch_id=sketch.id), ok(secs), f"u{secs}")
                    for decisions, secs in measured
                ]
            )
        incumbents = Incumbents(path, None, print, entries=[SearchTask(task, (sketch,), CPU)])
        best = incumbents.best(task.id)
        assert best is not None
        ranked = versions_in_network.ranked({task.id: best}, incumbents.next_best, incumbents.rank_secs)
        return [each.candidate.decisions for each in ranked.get(task.id, ())]

    first, second = (busy, 1e-5), (idle, 0.76e-5)  # 1% behind over all
    assert near(first, second, (others[0], 1.05e-5)) == [busy, idle, others[0]], "5% behind the best, not 38%"
    assert near(first, (idles[0], 0.9e-5)) == [], "20% behind over all"
