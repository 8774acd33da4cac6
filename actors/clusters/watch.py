"""Whether Ray's own processes are still there: without them no actor is started, ended or found, and Ray itself takes a
minute to say so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

import psutil  # type: ignore[import-untyped]

_LOOK_SECS = 0.5
_CONNECT_SECS = 3.0
# A cluster that restarts its server refuses connections for a moment.
_REFUSALS = 6
_OF_RAY = ("gcs_server", "raylet")


def started_here() -> dict[str, psutil.Process]:
    """Ray's own processes that this process has started, by their names: all of them, or none."""
    children: dict[str, psutil.Process] = {}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ended meanwhile, and was nothing of Ray's
            children[child.name()] = child
    return {name: children[name] for name in _OF_RAY} if children.keys() >= set(_OF_RAY) else {}


async def until_lost(processes: Mapping[str, psutil.Process], address: str) -> str:
    """Why the cluster cannot be used any more, as soon as that is so. ``processes``: of Ray, all of which are needed;
    where there are none of this process, the cluster's server is asked for at ``address``."""
    refusals = 0
    while True:
        for name, process in processes.items():
            if not _runs(process):
                return f"Ray's {name} (process {process.pid}) was killed, or ended by itself"
        if not processes:
            refusals = 0 if await _listens(address) else refusals + 1
            if refusals >= _REFUSALS:
                return f"nobody listens at {address} any more"
        await asyncio.sleep(_LOOK_SECS)


def end_all(processes: Iterable[psutil.Process]) -> None:
    """End these processes and those that they have started, who starts others first. What the actors among them have
    started ends with these, and cleans up."""
    family: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += [process, *process.children()]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _listens(address: str) -> bool:
    """Whether somebody listens there; also where the way to it is cut, which may be mended."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_SECS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionError:
        return False
    except (OSError, ValueError):
        return True
    writer.close()
    return True
