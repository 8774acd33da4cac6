"""What is sent to a device has the time that its bytes take, and the device the silence that its entry allows."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from devices.client import watchdog
from devices.client.measuring import LoadedCandidate
from devices.client.network import LoadedNetwork
from devices.client.watchdog import Watchdog
from devices.protocol import Artifact, MeasureRequest, TensorSpec
from fleet_tune.base.domain import Candidate, StopRule
from fleet_tune.base.timeouts import DeviceTimeouts

SLOW = DeviceTimeouts(upload_secs=100.0)


class Bench:
    """Takes everything, and notes how long it may take."""

    device = None

    def __init__(self) -> None:
        self.allowed: list[float] = []
        self.session = SimpleNamespace(deadline=self._deadline)
        self.memory = SimpleNamespace(admit=lambda _: None)

    def _deadline(self, secs: float) -> Any:
        self.allowed.append(secs)
        return nullcontext()

    def load(self, _library: bytes) -> None:
        """Nothing is there."""

    def arguments(self, *_: Any) -> list[Any]:
        return []

    place_anew = checked_arguments = outputs = arguments


def test_a_candidate_has_the_time_that_its_tensors_take() -> None:
    spec = TensorSpec((5_000_000,), "float32")
    artifact = Artifact(
        "task", Candidate("task", 0, "s", ()), bytes(2_000_000), (spec,), (spec, spec), (0,), (), "", 0.1
    )
    bench: Any = Bench()
    LoadedCandidate(bench, MeasureRequest(artifact, math.inf, StopRule()), False, None, SLOW)
    LoadedCandidate(bench, MeasureRequest(artifact, math.inf, StopRule()), False, None)
    assert bench.allowed == [100 + 42, 60 + 42]  # two of 20 MB, and the library; a second for each MB


def test_a_network_has_the_time_that_its_parameters_take(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimpleNamespace(set_input=lambda *_: None)
    monkeypatch.setattr("devices.client.network.relax.VirtualMachine", lambda *_: machine)
    monkeypatch.setattr("devices.client.network.tvm.runtime.tensor", lambda *_: None)
    bench: Any = Bench()
    LoadedNetwork(bench, bytes(1_000_000), [np.zeros(2_000_000, np.float64)], lambda: None, SLOW)
    assert bench.allowed == [600 + 100 + 17]


def test_a_server_has_the_silence_that_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_WATCHED_AFTER_SECS", 0.0)
    monkeypatch.setattr(watchdog, "_PING_SECS", 0.01)
    asked: list[float] = []
    cut = threading.Event()

    def gives_sign_of_life(wait_secs: float) -> bool:
        asked.append(wait_secs)
        return len(asked) < 3

    dog = Watchdog(gives_sign_of_life, cut.set, 20.0)
    with dog.guarding(1000.0) as guard:
        assert cut.wait(60.0)
    dog.end()
    assert guard.silent
    assert asked == [20.0] * 3
