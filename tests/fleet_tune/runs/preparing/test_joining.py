"""What a device class that joins a run has from the store that runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from devices.networks.lowering import LoweredNetwork
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.config.request import run_request
from fleet_tune.runs.preparing import joining, preparation
from fleet_tune.runs.preparing.preparation import Prepared
from fleet_tune.runs.shared_store.lookup import StoreLookup
from tests.helpers.devices import make_fingerprint
from tests.helpers.tasks import make_task

TASK = make_task("a", "orin")
BOARD = DeviceConfig(name="board", connect="10.0.0.1:9090")
PRINT = make_fingerprint(TASK.device_class, SIMULATED_CPU)


def prepared() -> Prepared:
    lowered = LoweredNetwork("net", "", TASK.device_class, None, (TASK,), {}, (), ())
    return Prepared(cast(Any, None), {"orin": PRINT}, {"orin": lowered}, frozenset(), (), {"orin": (BOARD,)})


@pytest.fixture(autouse=True)
def without_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "imported", lambda *_: prepared())
    monkeypatch.setattr(preparation, "check", lambda alone, _lowering: alone)
    monkeypatch.setattr(preparation, "teaching_of", lambda *_: None)


def test_a_class_that_joins_has_the_sketches_that_no_rule_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.db"
    found = StoreLookup(store, imported={TASK.id: ("a trace",), "another@orin": ("another trace",)})
    monkeypatch.setattr(preparation, "found_in", lambda *_: found)
    request = run_request("net.onnx", out=tmp_path / "out", store="")
    comes = joining.newcomer(prepared(), BOARD, PRINT, request, cast(Any, None), store, None)
    assert comes.found is found
    assert [entry.task.imported for entry in comes.prepared.undescribed] == [("a trace",)]
    alone = joining.newcomer(prepared(), BOARD, PRINT, request, cast(Any, None), None, None)
    assert alone.found is None
    assert [entry.task.imported for entry in alone.prepared.undescribed] == [()]


def test_what_was_found_for_a_class_that_joins_comes_to_what_the_run_has(tmp_path: Path) -> None:
    first = StoreLookup(tmp_path / "store.db", imported={"a@server": ("a trace",)})
    both = first.with_class(StoreLookup(tmp_path / "store.db", imported={TASK.id: ("another trace",)}))
    assert both.imported == {"a@server": ("a trace",), TASK.id: ("another trace",)}
