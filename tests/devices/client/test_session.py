"""Sessions with a real server, and that nothing of one stays when it is closed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tvm import rpc

from devices.client.rpc_device import RpcDevice
from devices.protocol import MeasureRequest
from devices.server.server import DeviceServer
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Outcome, StopRule
from tests.helpers.kernels import MakeArtifact


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("what", "outcome"), [("ok", Outcome.OK), ("crash", Outcome.RUN_ERROR), ("hang", Outcome.RUN_TIMEOUT)]
)
def test_tvm_s_session_is_free_without_the_garbage_collector(
    server: DeviceServer,
    native_target: str,
    make_artifact: MakeArtifact,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    outcome: Outcome,
) -> None:
    """TVM has 32 of them in a process."""
    sessions: list[weakref.ref[Any]] = []
    connect = rpc.connect

    def noting(*args: Any, **options: Any) -> Any:
        session = connect(*args, **options)
        sessions.append(weakref.ref(session))
        return session

    monkeypatch.setattr(rpc, "connect", noting)
    device = RpcDevice(DeviceConfig(name="test", target=native_target, threads=2), "127.0.0.1", server.port)
    device.add_oracle(make_artifact("ok", oracle=True))
    rule = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=0.3 if what == "hang" else 60.0)
    measured = device.measure(MeasureRequest(make_artifact(what), 0.0, rule))
    assert measured.outcome is outcome, measured
    device.close()
    assert sessions
    assert not any(session() for session in sessions)
