"""Records of the shared store for device classes, those of the start and those that come later."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from devices.networks.tasks.lowering import LoweredNetwork
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.config.request import run_request
from fleet_tune.base.errors import FleetFileError
from fleet_tune.base.power_text import HELD, LOWERED
from fleet_tune.runs.origins import origin_of
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes
from fleet_tune.runs.shared_store.lookup import StoreLookup
from fleet_tune.runs.tuning.late_classes import prepare_late_class
from tests.helpers.devices import make_fingerprint
from tests.helpers.tasks import make_task

TASK = make_task("a", "orin")
BOARD = DeviceConfig(name="board", connect="10.0.0.1:9090")
PRINT = make_fingerprint(TASK.device_class, SIMULATED_CPU)


def prepared() -> Prepared:
    lowered = LoweredNetwork("net", "", TASK.device_class, None, (TASK,), {}, (), ())
    return Prepared(cast(Any, None), {"orin": PRINT}, {"orin": lowered}, frozenset(), {"orin": (BOARD,)})


@pytest.fixture(autouse=True)
def without_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_classes, "lower_network", lambda *_: prepared())
    monkeypatch.setattr(device_classes, "check", lambda alone, _lowering: alone)
    monkeypatch.setattr(device_classes, "with_search_prior", lambda alone, *_: alone)


def test_a_class_that_joins_has_the_sketches_that_no_rule_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.db"
    found = StoreLookup(store, imported={TASK.id: ("a trace",), "another@orin": ("another trace",)})
    monkeypatch.setattr(device_classes, "look_up_tasks", lambda *_: found)
    request = run_request("net.onnx", out=tmp_path / "out", store="")
    late = prepare_late_class(prepared(), BOARD, PRINT, request, cast(Any, None), store)
    assert late.found is found
    assert [entry.task.imported for entry in late.undescribed] == [("a trace",)]
    alone = prepare_late_class(prepared(), BOARD, PRINT, request, cast(Any, None), None)
    assert alone.found is None
    assert [entry.task.imported for entry in alone.undescribed] == [()]


def test_what_was_found_for_a_class_that_joins_comes_to_what_the_run_has(tmp_path: Path) -> None:
    first = StoreLookup(tmp_path / "store.db", imported={"a@server": ("a trace",)})
    both = first.with_class(StoreLookup(tmp_path / "store.db", imported={TASK.id: ("another trace",)}))
    assert both.imported == {"a@server": ("a trace",), TASK.id: ("another trace",)}


def test_devices_of_a_class_in_two_power_modes_are_refused() -> None:
    maxn, slower = (dataclasses.replace(PRINT, power=mode) for mode in ("MAXN (0, a3f0c1)", "30W (2, 11d2aa)"))
    assert device_classes.device_classes_of({"a": maxn, "b": PRINT, "c": maxn}) == {"orin": maxn}  # one does not tell
    told = r"device 'b' is in power mode 30W \(2, .*'orin' in MAXN \(0, .*nvpmodel -m"
    with pytest.raises(FleetFileError, match=told):
        device_classes.device_classes_of({"a": maxn, "b": slower})


def test_a_clock_that_heat_holds_down_is_no_power_mode() -> None:
    hot, held, free, slower = (
        dataclasses.replace(PRINT, power=mode)
        for mode in (f"MAXN (0){LOWERED}", f"MAXN (0){HELD}", "MAXN (0)", "30W (2)")
    )
    for cool in (held, free):
        assert device_classes.device_classes_of({"a": cool, "b": hot}) == {"orin": cool}
    with pytest.raises(FleetFileError, match=r"device 'c' is in power mode MAXN \(0\), others .* clock held"):
        device_classes.device_classes_of({"a": hot, "b": held, "c": free})
    with pytest.raises(FleetFileError, match=r"device 'b' is in power mode 30W"):
        device_classes.device_classes_of({"a": hot, "b": slower})
    assert origin_of(hot) == origin_of(free) != origin_of(held)


def test_records_of_another_power_mode_are_of_another_origin() -> None:
    maxn, slower = (origin_of(dataclasses.replace(PRINT, power=mode)) for mode in ("MAXN (0)", "30W (2)"))
    assert slower.differences(maxn) == ("the power mode 30W (2) there and MAXN (0) here",)
    assert "power" not in origin_of(PRINT).machine
