"""What a session that is lost while a network runs on a device says of the network."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from devices.client.network import LoadedNetwork
from devices.client.session import SessionLostError, SessionTimeoutError
from fleet_tune.base.errors import NetworkRunError, UncheckedError
from fleet_tune.base.timeouts import DeviceTimeouts


def lost(monkeypatch: pytest.MonkeyPatch, error: Exception, end: str | Exception | None) -> LoadedNetwork:
    """A network whose runs raise ``error``. ``end``: what the server tells then."""

    def fail(*_: Any) -> Any:
        raise error

    def last_exit() -> str | None:
        if isinstance(end, Exception):
            raise end
        return end

    machine = SimpleNamespace(set_input=lambda *_: None, invoke_stateful=fail)
    monkeypatch.setattr("devices.client.network.relax.VirtualMachine", lambda *_: machine)
    session = SimpleNamespace(deadline=lambda _: nullcontext())
    memory = SimpleNamespace(admit=lambda _: None)
    bench: Any = SimpleNamespace(session=session, load=lambda _: None, device=None, memory=memory)
    return LoadedNetwork(bench, b"", (), last_exit, DeviceTimeouts())


def test_a_crash_and_an_error_of_its_own_are_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkRunError, match="killed by SIGFPE"):
        lost(monkeypatch, SessionLostError("cut"), "killed by SIGFPE").outputs()
    with pytest.raises(NetworkRunError, match="it fails on the device: ValueError: no"):
        lost(monkeypatch, ValueError("no"), "").outputs()


@pytest.mark.parametrize("end", ["killed by SIGKILL", "exited with code 1", "", None, SessionLostError("nobody")])
def test_what_else_ends_a_session_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, end: str | Exception | None
) -> None:
    with pytest.raises(UncheckedError, match="cut"):
        lost(monkeypatch, SessionLostError("cut"), end).outputs()


def test_neither_does_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UncheckedError):
        lost(monkeypatch, SessionTimeoutError("600 s"), "killed by SIGABRT").outputs()
