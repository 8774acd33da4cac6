"""When a cluster counts as lost, on processes and ports that stand in for Ray's."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import psutil
import pytest

from actors.clusters.http2 import GREETING
from actors.clusters.watch import _Server, end_all, started_here, until_lost

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITS!r}]).wait()"


def started(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


class Named:
    """A child process of this name; None: one that has ended meanwhile."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def name(self) -> str:
        if self._name is None:
            raise psutil.NoSuchProcess(1)
        return self._name


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["raylet", None, "gcs_server", "python"], ["gcs_server", "raylet"]),
        ([None, "raylet"], []),
        ([], []),
    ],
)
def test_rays_own_processes_are_found_beside_children_that_end(
    names: list[str | None], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda _self: [Named(name) for name in names])
    assert [process.name() for process in started_here().values()] == found


async def test_a_process_that_ends_is_told_by_its_name() -> None:
    first, second = started(WAITS), started(WAITS)
    try:
        processes = {"gcs_server": psutil.Process(first.pid), "raylet": psutil.Process(second.pid)}
        waiting = asyncio.ensure_future(until_lost(processes))
        second.kill()  # and not waited for: it stays as a zombie
        reason = await asyncio.wait_for(waiting, 60.0)
        assert reason == f"Ray's raylet (process {second.pid}) was killed, or ended by itself"
    finally:
        for each in (first, second):
            each.kill()
            each.wait()


async def test_a_process_that_is_stopped_for_long_is_told_and_one_that_goes_on_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.clusters.watch._LOOK_SECS", 0.01)
    process = started(WAITS)
    try:
        seen = psutil.Process(process.pid)
        waiting = asyncio.ensure_future(until_lost({"raylet": seen}))
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
            assert not waiting.done()
            process.send_signal(number)
            while (seen.status() == psutil.STATUS_STOPPED) != (number == signal.SIGSTOP):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        reason = await asyncio.wait_for(waiting, 60.0)
        assert reason == f"Ray's raylet (process {process.pid}) was stopped (SIGSTOP), and did not go on"
    finally:
        process.kill()
        process.wait()


class Server:
    """Answers as Ray's does, or ``is_silent``."""

    def __init__(self, is_silent: bool = False) -> None:
        self.answered = 0
        self._is_silent = is_silent
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(GREETING))
        if not self._is_silent:
            writer.write(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            self.answered += 1
        await reader.read()
        writer.close()


async def test_a_server_elsewhere_is_lost_when_nobody_listens_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clusters.watch._LOOK_SECS", 0.01)
    server = Server()
    async with server as address:
        waiting = asyncio.ensure_future(until_lost({}, address))
        async with asyncio.timeout(60.0):
            while server.answered < 3:
                await asyncio.sleep(0.01)
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, 60.0) == f"nobody listens at {address} any more"


async def test_a_server_elsewhere_that_takes_connections_and_says_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.clusters.watch._LOOK_SECS", 0.0)
    monkeypatch.setattr("actors.clusters.watch._CONNECT_SECS", 0.05)
    async with Server(is_silent=True) as address:
        reason = await asyncio.wait_for(until_lost({}, address), 60.0)
        assert reason == f"nobody answers at {address} any more"


async def test_a_server_that_comes_back_soon_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    well, refuses, silent = _Server.ANSWERS, _Server.REFUSES, _Server.SILENT
    answers = [well, refuses, refuses, *[silent] * 11, well, *[refuses] * 6]
    asked = iter(answers)

    async def asking(_address: str) -> _Server:
        return next(asked)

    monkeypatch.setattr("actors.clusters.watch._LOOK_SECS", 0.0)
    monkeypatch.setattr("actors.clusters.watch._asked", asking)
    await until_lost({}, "here:1")
    assert not list(asked)


def test_who_started_others_is_ended_with_them() -> None:
    parent = started(PARENT)
    process = psutil.Process(parent.pid)
    [child] = process.children()
    end_all([process])
    assert parent.wait(60) == -9
    _, alive = psutil.wait_procs([child], 60)
    assert not alive
