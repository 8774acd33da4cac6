"""Published networks are right: real networks, compiled from stores that hold kernels that are wrong or crash."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from devices.builds.linking import LinkerError
from devices.client.session import SessionLostError
from devices.host.warm_process import ChildStartError
from devices.networks.compiled import network_folder
from devices.networks.frontend import Network
from devices.networks.network import Array
from fleet_tune.base.domain import Outcome
from fleet_tune.base.errors import FleetTuneError, MemoryLackedError, RecordStoreError
from fleet_tune.base.precision import Conversion, Precision
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import FallbackKernel
from fleet_tune.runs.cancellation import Cancellation, CancelledBuildError
from fleet_tune.runs.publishing.compile_request import CompileRequest
from fleet_tune.runs.publishing.networks import check_records, compile_limit_secs, publish_networks
from tests.helpers.compiling import CLASS, Board, Example, Faked, crashing, failing_where, trace, wrong
from tests.helpers.devices import make_fingerprint
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate


def test_wrong_kernels_and_kernels_that_crash_are_found_and_replaced(example: Example, tmp_path: Path) -> None:
    first, second, third = example.tasks
    right = trace(first)
    records = example.store(tmp_path / "records.db", [wrong(first), right], [crashing(second)], [trace(third)])
    result = example.built(records, Board(example.network))

    error, manifest = example.published(tmp_path)
    assert error < 1e-5
    assert [entry["trace"] for entry in manifest["tasks"]] == [json.loads(right), None, json.loads(trace(third))]
    used = [(each.task, each.used) for each in result.fallbacks]
    assert used == [(first.workload.name, FallbackKernel.RECORD), (second.workload.name, FallbackKernel.UNSCHEDULED)]
    assert "relative error" in result.fallbacks[0].reason
    assert "process on the device ended" in result.fallbacks[1].reason
    assert manifest["fallbacks"][0]["reason"] == result.fallbacks[0].reason
    assert result.checked_on == manifest["checked_on"] == "board"
    example.check_times(result, manifest)  # as the device's server tells
    assert result.max_rel_error == pytest.approx(error)

    # What was found is durable: they are not chosen again.
    with RecordReader(records) as reader:
        assert reader.best(first.id).candidate == make_candidate(first, 1)  # type: ignore[union-attr]
        assert reader.best(second.id) is None
        marked = [each.measurement.outcome for each in reader if each.revision]
    assert sorted(marked) == [Outcome.RUN_ERROR, Outcome.WRONG_OUTPUT]


def test_a_kernel_that_crashes_on_this_machine_ends_no_process_of_ours(example: Example, tmp_path: Path) -> None:
    records = example.store(tmp_path / "records.db", [], [], [crashing(example.tasks[2])])
    result = example.built(records, Faked(example.network))
    assert "killed by SIG" in result.fallbacks[2].reason
    assert {each.used for each in result.fallbacks} == {FallbackKernel.UNSCHEDULED}
    assert example.published(tmp_path)[0] < 1e-5
    assert result.checked_on == "this machine"


def test_a_network_that_is_wrong_without_schedules_is_not_published_and_no_kernel_is_blamed(
    example: Example, tmp_path: Path
) -> None:
    records = example.right(tmp_path / "records.db")
    result = example.built(records, Faked(example.network, add=1.0))
    assert result.published == "nothing"
    assert "without any schedule: relative error" in result.problem
    assert not (tmp_path / "manifest.json").exists()
    assert not (tmp_path / "network.so").exists()
    with RecordReader(records) as reader:
        assert all(record.revision == 0 for record in reader)


@pytest.mark.parametrize(
    "error",
    [
        LinkerError("no linker found", "install binutils"),
        MemoryLackedError("the network cannot be compiled: killed by SIGKILL", "free some memory"),
        ChildStartError("the process that compiles networks did not start", "free some memory"),
    ],
)
def test_what_this_machine_lacks_is_blamed_on_no_record(
    error: FleetTuneError, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_where(monkeypatch, error, lambda *_: True)
    records = example.right(tmp_path / "records.db")
    with pytest.raises(type(error), match=str(error)):
        example.built(records, Faked(example.network))
    with RecordReader(records) as reader:
        assert all(record.revision == 0 for record in reader)


def test_the_time_for_compiling_follows_from_the_builds_of_the_records(example: Example, tmp_path: Path) -> None:
    def limit_secs(name: str, *build_secs: float) -> float:
        path = tmp_path / name
        with RecordStore(path) as opened:
            for task, secs in zip(example.tasks, build_secs, strict=False):
                measurement = dataclasses.replace(ok(1e-6), build_secs=secs)
                opened.append([make_record(make_candidate(task), measurement, trace=trace(task))])
        return compile_limit_secs([example.lowered], path)

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


def test_nothing_is_published_once_the_building_is_cancelled(example: Example, tmp_path: Path) -> None:
    records = example.right(tmp_path / "records.db")
    cancellation = Cancellation()
    with pytest.raises(CancelledBuildError):
        example.built(records, Ending(example.network, cancellation), cancellation)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("records.db")] == []


class Broken(Faked):
    """A machine on which something unexpected happens."""

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        raise ValueError(f"nobody expected this of {folder}")


def test_what_goes_wrong_with_one_class_takes_nothing_from_the_others(example: Example, tmp_path: Path) -> None:
    records = example.right(tmp_path / "records.db")
    both = {"broken": example.lowered, "cpu": example.lowered}
    prints = dict.fromkeys(both, make_fingerprint(CLASS))
    runners = {"broken": Broken(example.network), "cpu": Faked(example.network)}
    what = CompileRequest(example.network, both, prints, example.entries, runners, records)
    broken, right = publish_networks(what, tmp_path, Cancellation(), network_folder)
    assert (broken.device_class, broken.published) == ("broken", "nothing")
    assert "nobody expected this" in broken.problem
    assert right.published == "tuned"
    assert example.published(tmp_path / "cpu")[0] < 1e-5

    with pytest.raises(ValueError, match="nobody expected this"):
        example.built(records, Broken(example.network))


def test_what_could_not_be_checked_is_published_and_told(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> Any:
        raise SessionLostError("nobody listens")

    monkeypatch.setattr("devices.client.rpc_device.LoadedNetwork", lost)
    records = example.right(tmp_path / "records.db")
    result = example.built(records, Board(example.network))
    assert (result.checked_on, result.tuned_secs, result.published) == ("", None, "tuned")
    assert result.unchecked == "device board did not answer: nobody listens"
    error, manifest = example.published(tmp_path)
    assert error < 1e-5
    assert manifest["unchecked"] == result.unchecked


def test_a_store_without_anything_of_the_network_is_told(example: Example, tmp_path: Path) -> None:
    records = example.store(tmp_path / "records.db", [], [], [])
    with pytest.raises(RecordStoreError, match="no verified record of this network for cpu"):
        check_records({"cpu": example.lowered}, example.entries, records, None)
    example.store(records, [trace(example.tasks[0])], [], [])
    check_records({"cpu": example.lowered}, example.entries, records, None)


def test_records_of_a_run_in_another_precision_are_refused(example: Example, tmp_path: Path) -> None:
    records = example.store(tmp_path / "records.db", [trace(example.tasks[0])], [], [])
    with RecordStore(records) as store:
        store.bind({"network": "net", "precision": "bf16"})
    check_records({"cpu": example.lowered}, example.entries, records, Conversion(Precision.BF16))
    with pytest.raises(RecordStoreError, match="is of a run in bf16, not in that") as caught:
        check_records({"cpu": example.lowered}, example.entries, records, None)
    assert caught.value.next_step == "give --precision bf16"
