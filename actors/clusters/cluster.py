"""The Ray cluster of a run: an embedded one, or an existing one."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil  # type: ignore[import-untyped]

from actors.clients.calls import LOST, first_line
from actors.clusters.embedded_ray import LOOPBACK, ended_by_signals, only_what_is_used
from actors.clusters.http2 import FRAME_HEAD_BYTES, GREETING, are_settings
from actors.clusters.nodes import nodes_of_cluster, pinned_to
from actors.clusters.run_folder import run_folder
from actors.clusters.waiting_signals import Start, signals_wait
from actors.clusters.watch import end_all, raylet_of, started_here, until_lost
from devices.host.children.exit_causes import describe_exit
from devices.host.garbage_collection import garbage_collection_paused
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import ClusterError, StartInterruptedError
from policies.runs.cluster.placement import ClusterNode

_REACH_SECS = 10.0
_LEAVE_SECS = 5.0
_RAY = "r"  # short, as in run_folder: paths of sockets contain it
_OBJECT_STORE_BYTES = 200 * 1024 * 1024
_ENVIRONMENT = {
    # Ray gives its workers a niceness of 15, so that kernels would be timed behind everything else on the host. All
    # processes of the cluster inherit this setting from the environment: one process once did not take it from the
    # configuration below.
    "RAY_worker_niceness": "0",
}
_SYSTEM_CONFIG = {
    # Ray counts every call and every handler for a dashboard, which does not run here.
    "task_events_report_interval_ms": 0,
    "event_stats": False,
    "enable_metrics_collection": False,
}


@dataclass
class Cluster:
    """A connected Ray cluster."""

    node_id: str
    """Id of the driver's node, which has the output folder."""
    folder: Path
    """Folder of this run on that node; it is removed when the connection ends."""
    address: str
    processes: Mapping[str, psutil.Process] = field(default_factory=dict)
    """Ray's own processes by name: all of an embedded cluster; of another cluster the raylet of this node, if this
    process can see it."""
    is_embedded: bool = False
    """True if the cluster ends with this process."""
    is_lost: bool = False
    """True once the cluster cannot be used any more."""

    async def lost(self) -> str:
        """Wait until the cluster cannot be used any more, and return the reason. The rest of an embedded cluster is
        ended."""
        reason = await until_lost(self.processes, "" if self.is_embedded else self.address)
        self.is_lost = True
        if self.is_embedded:
            end_all(self.processes.values())
        return reason

    def here(self) -> Any:
        """The scheduling strategy that pins an actor to the driver's node."""
        return pinned_to(self.node_id)

    def nodes(self) -> tuple[ClusterNode, ...]:
        """The nodes of the cluster. Raises ClusterError."""
        if not self.is_embedded:
            try:  # Ray ends a process that calls a lost server after a minute
                _check_reachable(self.address)
            except OSError as error:
                problem = f"the Ray cluster at {self.address!r} does not answer: {error.strerror or error}"
                raise ClusterError(problem, "run the same command again when it does: it resumes") from error
        return nodes_of_cluster(self.node_id)


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Cluster]:
    """Connect to the cluster at ``address``, or start an embedded one if it is None; disconnect at the end.

    Raises :class:`ClusterError` if the cluster cannot be reached. A signal that asks the process to end interrupts the
    start: its handler runs, then :class:`StartInterruptedError` is raised.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(run_folder())
        except OSError as error:
            raise ClusterError(
                f"cannot make a folder in /tmp: {error.strerror or error}", "free space there, or let this user write"
            ) from error
        # A connection of the caller (a notebook, a test, a service) is used, and left as it was.
        given = ray.is_initialized()
        made: list[Cluster] = []
        if not given:
            # Ray makes its own folder accessible to all users, so it gets one inside a folder that other users cannot
            # enter.
            with signals_wait():
                _connect(address, folder / _RAY)
            stack.callback(lambda: _leave() if any(each.is_lost for each in made) else _disconnect())
        context = ray.get_runtime_context()
        node_id = context.get_node_id()
        started = started_here() if address is None and not given else {}
        made.append(Cluster(node_id, folder, context.gcs_address, started or raylet_of(node_id), bool(started)))
        yield made[0]


@contextlib.contextmanager
def lost_means_resume() -> Iterator[None]:
    """Raise ClusterError if a process of the session is lost while it starts: the run can be resumed."""
    try:
        yield
    except LOST as error:
        raise ClusterError(
            f"a process of the session ended: {first_line(error)}", "run the same command again: it resumes"
        ) from error


def _connect(address: str | None, folder: Path) -> None:
    """Connect to a cluster. ``folder``: for the files of an embedded one; Ray makes it."""
    import ray

    start = Start()
    try:
        if address is None:
            with only_what_is_used(start), ended_by_signals(start), mock.patch.dict(os.environ, _ENVIRONMENT):
                ray.init(
                    address="local",
                    num_cpus=usable_cpus(),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(folder),
                    _system_config=_SYSTEM_CONFIG,
                    logging_level="error",
                    log_to_driver=False,
                    configure_logging=True,
                )
        else:
            with ended_by_signals(start):
                _check_reachable(address)
                ray.init(address=address, logging_level="error", log_to_driver=False)
    except StartInterruptedError:
        start.end_servers()
        raise
    except Exception as error:
        codes = {name: server.poll() for name, server in start.servers.items()}
        start.end_servers()
        for name, code in codes.items():
            if code is not None:  # Ray itself waits for the server, and reports that it took too long
                raise ClusterError(
                    f"cannot start an embedded Ray cluster: its {name} has ended: {describe_exit(code)}",
                    "check free memory (dmesg) and space in /tmp, and run the same command again",
                ) from error
        where = "an embedded Ray cluster" if address is None else f"the Ray cluster at {address!r}"
        raise ClusterError(
            f"cannot start {where}: {first_line(error)}"
            if address is None
            else f"cannot connect to {where}: {first_line(error)}",
            "check --address, and RAY_AUTH_MODE=token where the cluster asks for a token"
            if address is not None
            else "try again when the machine is less busy; check free memory and space in /tmp, or give a cluster "
            "with --address",
        ) from error


def _leave() -> None:
    """Disconnect from a lost cluster without waiting for it: one of its processes may stand still, and Ray waits for
    that process for ever. A command ends then. In other processes Ray waits again when they end."""
    leaving = threading.Thread(target=_disconnect, daemon=True, name="disconnect")
    leaving.start()
    leaving.join(_LEAVE_SECS)


def _disconnect() -> None:
    import ray

    # Garbage collection of an actor's handle while Ray's worker ends would end the process. A thread that an
    # interrupted start has left may run the garbage collector at that moment.
    gc.collect()
    with garbage_collection_paused():
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if no Ray server listens at the address. Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return
    with socket.create_connection((host.strip("[]"), int(port)), _REACH_SECS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(GREETING)
            if not _settings_in(connection, _REACH_SECS):
                raise OSError("what listens there is not Ray")


def _settings_in(connection: socket.socket, timeout_secs: float) -> bool:
    """Return true if the server's first frame is one of HTTP/2 settings, as Ray's services send it."""
    deadline = time.monotonic() + timeout_secs
    head = b""
    try:
        while len(head) < FRAME_HEAD_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = connection.recv(FRAME_HEAD_BYTES - len(head))
            if not chunk:
                return False
            head += chunk
    except OSError:  # the server is silent, or hung up
        return False
    return are_settings(head)
