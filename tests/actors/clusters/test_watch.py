"""When a cluster counts as lost, on processes and ports that stand in for Ray's."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import psutil
import pytest

from actors.clusters.watch import end_all, started_here, until_lost

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
        waiting = asyncio.ensure_future(until_lost(processes, ""))
        second.kill()  # and not waited for: it stays as a zombie
        reason = await asyncio.wait_for(waiting, 60.0)
        assert reason == f"Ray's raylet (process {second.pid}) was killed, or ended by itself"
    finally:
        for each in (first, second):
            each.kill()
            each.wait()


async def test_a_server_elsewhere_is_lost_when_nobody_listens_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.clusters.watch._LOOK_SECS", 0.01)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        waiting = asyncio.ensure_future(until_lost({}, address))
        listening.settimeout(60.0)
        connection, _ = await asyncio.to_thread(listening.accept)
        connection.close()
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, 60.0) == f"nobody listens at {address} any more"


async def test_a_server_that_comes_back_soon_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [True, False, False, True, *[False] * 6]
    asked = iter(answers)

    async def listens(_address: str) -> bool:
        return next(asked)

    monkeypatch.setattr("actors.clusters.watch._LOOK_SECS", 0.0)
    monkeypatch.setattr("actors.clusters.watch._listens", listens)
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
