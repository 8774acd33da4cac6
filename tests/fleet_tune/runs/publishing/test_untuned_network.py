"""The tuned network is timed beside the untuned one, and the faster one that does not fail is published."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from devices.host import background_load
from devices.networks.frontend import Network
from devices.networks.processes.fresh_process import Outputs
from fleet_tune.base.errors import DiskFullError, NetworkRunError
from fleet_tune.base.results import FallbackKernel, Notice
from fleet_tune.report.network import network_lines
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.publishing.network_runners import LocalNetworkRunner
from fleet_tune.runs.publishing.untuned_times import UntunedTimes
from tests.helpers.compiling import CLASS, Board, Example, Faked, Told, failing_where, trace, wrong
from tests.helpers.devices import make_fingerprint

pytestmark = pytest.mark.usefixtures("networks_run_here")


def test_the_untuned_network_is_published_where_it_is_faster(example: Example, tmp_path: Path) -> None:
    records = example.right(tmp_path / "records.db")
    result = example.built(records, Faked(example.network, times=(2.0, 1.0)))
    assert (result.published, result.secs) == ("untuned", 1.0)
    error, manifest = example.published(tmp_path)
    assert error < 1e-5
    assert manifest["published"] == "untuned"
    assert [entry["trace"] for entry in manifest["tasks"]] == [None] * 3


def test_what_the_untuned_network_takes_on_a_busy_host_is_told_as_such_and_not_kept(
    example: Example, tmp_path: Path
) -> None:
    records = example.right(tmp_path / "records.db")
    times, fingerprint = UntunedTimes(tmp_path / "cache"), make_fingerprint(CLASS)
    place = Faked(example.network, times=(1.0, 2.5))
    place.others_cores = 1.5
    busy = example.built(records, place, untuned_times=times)
    assert (busy.tuned_secs, busy.untuned_secs, busy.on_busy_host) == (1.0, 2.5, True)
    assert times.find(example.lowered, fingerprint, "this machine") is None
    assert example.published(tmp_path)[1]["measured"]["others_cores"] == 1.5
    (line,) = [line for label, line, _ in network_lines(busy) if label == "busy host"]
    assert "other processes took 1.5 of the network's processor cores while it was timed" in line

    place.others_cores = 0.1
    quiet = example.built(records, place, untuned_times=times)
    assert (quiet.untuned_secs, quiet.on_busy_host) == (2.5, False)
    assert times.find(example.lowered, fingerprint, "this machine") == 2.5
    assert "busy host" not in {label for label, *_ in network_lines(quiet)}


def test_what_the_untuned_network_takes_under_a_quota_is_told_as_such_and_not_kept(
    example: Example, tmp_path: Path
) -> None:
    times, fingerprint = UntunedTimes(tmp_path / "cache"), make_fingerprint(CLASS)
    place = Faked(example.network, times=(1.0, 2.5))
    place.throttled = 0.99
    result = example.built(example.right(tmp_path / "records.db"), place, untuned_times=times)
    assert (result.untuned_secs, result.is_throttled) == (2.5, True)
    assert times.find(example.lowered, fingerprint, "this machine") is None
    assert example.published(tmp_path)[1]["measured"]["throttled"] == 0.99
    (line,) = [line for label, line, _ in network_lines(result) if label == "throttled"]
    assert "the CPU quota of this control group stopped it in 99% of the periods" in line


def test_others_are_counted_whenever_this_machine_times_a_network(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(
        background_load._Moment(clock, clock * 2, work, 0.0)
        for clock, work in ((0.0, 0.0), (1.0, 0.5), (2.0, 1.0), (3.0, 2.0), (4.0, 2.0), (5.0, 3.5))
    )
    monkeypatch.setattr(background_load, "_now", lambda: next(seen))
    monkeypatch.setattr(background_load, "_usable", lambda: {0, 1})
    monkeypatch.setattr("devices.networks.processes.fresh_process.measure", lambda *_: 1.0)
    monkeypatch.setattr("devices.networks.processes.fresh_process.measure_in_turn", lambda *_: (1.0, 2.0))
    expecting = SimpleNamespace(tried=lambda _: (Outputs((), (), {}), None), close=lambda: None)
    monkeypatch.setattr("devices.networks.processes.fresh_process.PreloadedProcess", lambda *_: expecting)
    place = LocalNetworkRunner(example.network.example_inputs)
    assert place.others_cores is None
    assert (place.measure_secs(tmp_path), place.others_cores) == (1.0, 0.5)
    assert (place.measure_in_turn(tmp_path, tmp_path), place.others_cores) == ((1.0, 2.0), 1.0)
    place.expect()
    assert place.tried(tmp_path).others_cores == 1.5
    place.close()


class Alone(LocalNetworkRunner):
    """This machine, where no network is timed beside another."""

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        raise AssertionError(f"{first.name} is timed beside {second.name}")


def test_where_an_earlier_run_has_timed_the_untuned_network_a_far_faster_one_is_timed_alone(
    example: Example, tmp_path: Path
) -> None:
    records = example.right(tmp_path / "records.db")
    times, fingerprint = UntunedTimes(tmp_path / "cache"), make_fingerprint(CLASS)
    first = example.built(records, Faked(example.network, times=(1.0, 1.5)), untuned_times=times)
    assert (first.published, first.tuned_secs, first.untuned_secs) == ("tuned", 1.0, 1.5)
    assert not first.untuned_earlier

    progress = Told()
    result = example.built(records, Alone(example.network.example_inputs), untuned_times=times, progress=progress)
    assert result.tuned_secs is not None
    assert 0 < result.tuned_secs < 0.75
    assert (result.published, result.untuned_secs, result.untuned_earlier) == ("tuned", 1.5, True)
    assert result.framework_secs is not None
    assert not any("untuned" in each for each in progress.all)
    error, manifest = example.published(tmp_path)
    assert error < 1e-5
    assert manifest["measured"]["untuned_earlier"]
    example.check_times(result, manifest)

    # It is not far faster than this one was: both are timed, and what is found is kept.
    times.keep(example.lowered, fingerprint, "this machine", 1e-9)
    later = example.built(records, Faked(example.network, times=(1.0, 2.5)), untuned_times=times)
    assert (later.tuned_secs, later.untuned_secs, later.untuned_earlier) == (1.0, 2.5, False)
    assert times.find(example.lowered, fingerprint, "this machine") == 2.5
    for other in (dataclasses.replace(fingerprint, threads=1), dataclasses.replace(fingerprint, cpu_model="another")):
        assert times.find(example.lowered, other, "this machine") is None
    assert times.find(example.lowered, fingerprint, "board") is None
    assert times.find(dataclasses.replace(example.lowered, fingerprint="another"), fingerprint, "this machine") is None


def test_a_network_far_faster_than_the_untuned_one_was_when_it_was_compared_is_timed_alone(
    example: Example, tmp_path: Path
) -> None:
    times, fingerprint = UntunedTimes(tmp_path / "cache"), make_fingerprint(CLASS)
    records, place = example.right(tmp_path / "records.db"), Alone(example.network.example_inputs)
    result = example.built(records, place, untuned_times=times, untuned_secs={"cpu": 1.5})
    assert (result.published, result.untuned_secs, result.untuned_earlier) == ("tuned", 1.5, True)
    assert times.find(example.lowered, fingerprint, "this machine") == 1.5

    # What an earlier run has measured comes first, and what this machine computes says nothing of a board.
    again = example.built(records, place, untuned_times=times, untuned_secs={"cpu": 1e-9})
    assert again.untuned_secs == 1.5
    board = Board(example.network)
    on_board = example.built(records, board, untuned_secs={"cpu": 1.5})
    assert (on_board.tuned_secs, on_board.untuned_secs, on_board.untuned_earlier) == (1.0, 2.0, False)


def test_what_cannot_be_timed_is_the_fault_of_no_kernel(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = example.right(tmp_path / "records.db")
    times = UntunedTimes(tmp_path / "cache")
    times.keep(example.lowered, make_fingerprint(CLASS), "this machine", 10.0)
    tried = Faked.tried
    monkeypatch.setattr(Faked, "tried", lambda *given: tried(*given)._replace(times=None))
    result = example.built(records, Faked(example.network), untuned_times=times)
    assert (result.published, result.tuned_secs, result.untuned_earlier) == ("tuned", 1.0, False)
    assert not result.fallbacks
    assert result.in_network is not None


def test_a_wrong_kernel_is_found_also_where_the_network_is_timed_in_the_same_process(
    example: Example, tmp_path: Path
) -> None:
    first, *others = example.tasks
    right = [[trace(task)] for task in others]
    records = example.store(tmp_path / "records.db", [wrong(first), trace(first)], *right)
    times = UntunedTimes(tmp_path / "cache")
    times.keep(example.lowered, make_fingerprint(CLASS), "this machine", 10.0)
    result = example.built(records, Alone(example.network.example_inputs), untuned_times=times)
    assert (result.published, result.untuned_earlier) == ("tuned", True)
    assert [(each.task, each.used) for each in result.fallbacks] == [(first.workload.name, FallbackKernel.RECORD)]
    assert example.published(tmp_path)[0] < 1e-5


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


def test_a_tuned_network_that_crashes_when_it_is_timed_is_not_published(example: Example, tmp_path: Path) -> None:
    records = example.right(tmp_path / "records.db")
    result = example.built(records, Crashing(example.network, "network"))
    assert (result.published, result.secs) == ("untuned", 3.0)
    assert result.problem == "the tuned network fails when it is timed: killed by SIGSEGV"
    error, manifest = example.published(tmp_path)
    assert error < 1e-5
    assert manifest["problem"] == result.problem
    assert [entry["trace"] for entry in manifest["tasks"]] == [None] * 3


def test_an_untuned_network_that_crashes_takes_nothing_from_the_tuned_one(example: Example, tmp_path: Path) -> None:
    records = example.right(tmp_path / "records.db")
    progress = CompileProgress(60.0, [Notice(4, 5.0, "of the tuning")])
    result = example.built(records, Crashing(example.network, "untuned"), progress=progress)
    assert (result.published, result.tuned_secs, result.untuned_secs) == ("tuned", 3.0, None)
    before, notice = progress.notices
    assert (before.number, notice.number) == (4, 5)
    assert notice.at_secs >= 60.0
    assert notice.text == "the network of cpu is not compared with the untuned one: NetworkRunError: killed by SIGSEGV"
    assert example.published(tmp_path)[0] < 1e-5


@pytest.mark.parametrize("error", [DiskFullError("no space left", "free some"), RuntimeError("LLVM ERROR")])
def test_nor_does_one_that_cannot_be_compiled(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing_where(monkeypatch, error, lambda out, _: out.name == "untuned")
    records = example.right(tmp_path / "records.db")
    result = example.built(records, Crashing(example.network))
    assert (result.published, result.tuned_secs, result.untuned_secs) == ("tuned", 3.0, None)
    assert example.published(tmp_path)[0] < 1e-5
