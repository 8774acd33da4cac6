"""The watch over Ray's own processes: without them no actor is started, ended or found, and Ray itself takes a minute
to notice their loss."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
from collections import Counter
from collections.abc import Iterable, Mapping

import psutil  # type: ignore[import-untyped]

from actors.clusters.http2 import FRAME_HEAD_BYTES, GREETING, are_settings

_LOOK_SECS = 0.5
_CONNECT_SECS = 3.0
# A server that restarts refuses connections for a moment, and a busy one does not answer for a while. Ray's own
# processes end when they have not heard from the server for a minute.
_REFUSALS = 6
_SILENCES = 12
# Looks in a row that find a process stopped. A short halt by a debugger does no harm.
_STOPS = 20
_OF_RAY = ("gcs_server", "raylet")


class _Server(enum.Enum):
    """The state of a cluster's server."""

    ANSWERS = enum.auto()
    REFUSES = enum.auto()
    SILENT = enum.auto()


def started_here() -> dict[str, psutil.Process]:
    """Ray's own processes that this process has started, by name: all of them, or none."""
    children: dict[str, psutil.Process] = {}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a child that ended meanwhile was not one of Ray's
            children[child.name()] = child
    return {name: children[name] for name in _OF_RAY} if children.keys() >= set(_OF_RAY) else {}


def raylet_of(node_id: str) -> dict[str, psutil.Process]:
    """Return the raylet of this machine's node by name, if another process has started it; empty if this process cannot
    see it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "raylet" and f"--node_id={node_id}" in process.cmdline():
                return {"raylet": process}
    return {}


async def until_lost(processes: Mapping[str, psutil.Process], address: str = "") -> str:
    """Wait until the cluster cannot be used any more, and return the reason.

    Args:
        processes: Ray's own processes. All of them are needed.
        address: address of the cluster's server, if the server is not one of ``processes``.
    """
    stops: Counter[str] = Counter()
    refusals = silences = 0
    while True:
        for name, process in processes.items():
            status = _status(process)
            if status is None:
                return f"Ray's {name} (process {process.pid}) was killed, or ended by itself"
            stops[name] = stops[name] + 1 if status == psutil.STATUS_STOPPED else 0
            if stops[name] >= _STOPS:
                return f"Ray's {name} (process {process.pid}) was stopped (SIGSTOP), and did not go on"
        if address:
            server = await _asked(address)
            refusals = refusals + 1 if server is _Server.REFUSES else 0
            silences = silences + 1 if server is _Server.SILENT else 0
            if refusals >= _REFUSALS:
                return f"nobody listens at {address} any more"
            if silences >= _SILENCES:
                return f"nobody answers at {address} any more"
        await asyncio.sleep(_LOOK_SECS)


def end_all(processes: Iterable[psutil.Process]) -> None:
    """End these processes and their children, parents first. Some children are actors: the actors' own child processes
    notice that, clean up and end."""
    family: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += [process, *process.children()]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _status(process: psutil.Process) -> str | None:
    """Return the status of a process in psutil's words; None if the process has ended."""
    try:
        status = str(process.status()) if process.is_running() else None
    except psutil.NoSuchProcess:
        return None
    return None if status == psutil.STATUS_ZOMBIE else status


async def _asked(address: str) -> _Server:
    """Return the state of the server. A stopped server accepts connections and does not answer."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_SECS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                if os.environ.get("RAY_USE_TLS", "0") != "0":
                    return _Server.ANSWERS  # the server would wait for a TLS handshake
                writer.write(GREETING)
                return _Server.ANSWERS if are_settings(await reader.readexactly(FRAME_HEAD_BYTES)) else _Server.SILENT
            finally:
                writer.close()
    except (ConnectionError, EOFError):
        return _Server.REFUSES
    except (OSError, ValueError):  # a TimeoutError is one
        return _Server.SILENT
