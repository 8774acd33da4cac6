"""Steps of the service's child."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.device_state import Admin
from fleet_tune.base.records.orders import FleetOrders, orders_path
from fleet_tune.retuning import child
from fleet_tune.runs import run as run_module
from fleet_tune.runs.fleet import device_check
from fleet_tune.runs.fleet.device_check import DeviceCheck


class AskedError(Exception):
    """Ends a run that is not to be made."""


@pytest.mark.parametrize(("host", "port"), [("10.0.0.7", 0), (None, None)])
def test_a_run_serves_metrics_on_a_free_port_where_the_service_does(
    host: str | None, port: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunRequest] = []

    async def run(request: RunRequest, **_: Any) -> None:
        asked.append(request)
        raise AskedError

    monkeypatch.setattr(run_module, "run", run)
    with pytest.raises(AskedError):
        child.tune(
            "net.onnx",
            inputs=None,
            trust=False,
            fleet=None,
            devices=["local"],
            out=str(tmp_path / "out"),
            store="",
            address=None,
            secs=60.0,
            metrics_host=host,
        )
    assert [(request.metrics_port, request.metrics_host) for request in asked] == [(port, host or "127.0.0.1")]


def test_devices_that_people_have_taken_out_of_use_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("".join(f'[[device]]\nname = "{name}"\nconnect = "{name}.lab:9190"\n' for name in "abc"))
    orders = FleetOrders(orders_path(fleet))
    orders.give("a", Admin.MAINTENANCE, "new firmware")
    orders.give("b", Admin.RETIRED, "")
    orders.give("b", Admin.ACTIVE, "")
    asked: list[str] = []

    def check(_fleet: object, devices: Sequence[str], _address: str | None) -> list[DeviceCheck]:
        asked.extend(devices)
        return [DeviceCheck(name, "", state="lost", detail="no answer") for name in devices]

    monkeypatch.setattr(device_check, "check_devices", check)
    answers = {each["name"]: each["problem"] for each in child.ask(str(fleet), ["a", "b", "c"])}
    assert asked == ["b", "c"]
    assert answers == {"a": "out of use: maintenance (new firmware)", "b": "no answer", "c": "no answer"}
    assert [each["name"] for each in child.ask(str(fleet), ["a"])] == ["a"]
