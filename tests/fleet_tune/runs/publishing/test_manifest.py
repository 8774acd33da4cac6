from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import Fallback, FallbackKernel, NetworkResult
from fleet_tune.runs.publishing.manifest import found, made_of
from tests.helpers.devices import make_fingerprint
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task


def test_each_task_says_whose_kernel_it_has(tmp_path: Path) -> None:
    conv, dense = make_task("conv", "cpu", flop=2e9), make_task("dense", "cpu")
    with RecordStore(tmp_path / "records.db") as store:
        record = make_record(make_candidate(conv, 7), ok(1e-3, 1e-3))
        [seq] = store.append([record])
        record = dataclasses.replace(record, seq=seq)
    fingerprint, sketch = make_fingerprint(conv.device_class), record.candidate.sketch_id
    for rules, rule in (
        ({sketch: "tiled"}, "tiled"),
        ({"another": "tiled"}, "of another version"),
        ({}, "not described"),
    ):
        said = made_of([conv, dense], {conv.id: record}, rules, fingerprint, tmp_path / "records.db")
        entry = {"best_secs": 1e-3, "gflops": 2000.0, "rule": rule, "decisions": [7], "record": seq}
        assert said["tasks"] == {conv.id: entry, dense.id: {}}
        assert said["threads"] == fingerprint.threads
    assert json.dumps(said)


def test_what_was_not_measured_is_left_out() -> None:
    nothing = NetworkResult("cpu", Path("out"), None, None, None, None, None, unchecked="it was not there")
    assert found(nothing) == {
        "published": "tuned",
        "problem": None,
        "checked_on": None,
        "unchecked": "it was not there",
        "fallbacks": [],
        "chosen_in_network": [],
    }


def test_what_was_measured_is_told_with_what_it_is_compared_with() -> None:
    fallback = Fallback("conv", "no verified record", FallbackKernel.UNSCHEDULED)
    result = NetworkResult(
        "cpu", Path("out"), 1.0, 2.5, None, 1e-6, 1e-5, checked_on="board", fallbacks=(fallback,), untuned_earlier=True
    )
    said = found(result)
    assert said["measured"] == {
        "tuned_secs": 1.0,
        "untuned_secs": 2.5,
        "framework_secs": None,
        "max_abs_error": 1e-6,
        "max_rel_error": 1e-5,
        "mean_rel_error": None,
        "untuned_earlier": True,
    }
    assert said["fallbacks"] == [{"task": "conv", "reason": "no verified record", "used": "unscheduled"}]
