"""Steps of the service's child."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet_tune.base.config.request import RunRequest
from fleet_tune.retuning import child
from fleet_tune.runs import run as run_module


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
