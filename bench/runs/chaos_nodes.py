"""A Ray cluster of child processes, for runs whose machines fail: a head and other nodes on loopback, with token
authentication."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.result import BenchError
from devices.host.children.parent import end_with_parent

CPUS = 1
"""CPUs of each node, whatever the machine has. A real run has one builder for each."""
_START_SECS = 180.0
_ATTEMPTS = 3
_END_SECS = 30.0
_STOPPED_SECS = 60.0
_RAY = Path(sys.executable).with_name("ray")
_STORE_BYTES = 100_000_000


class Node:
    """A process ``ray start --block`` and the processes that it starts, in a process session of their own."""

    def __init__(self, log: Path, env: dict[str, str], *options: str) -> None:
        self._log = log
        small = ("--num-cpus", str(CPUS), "--object-store-memory", str(_STORE_BYTES))
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [
                    str(_RAY),
                    "start",
                    "--block",
                    "--disable-usage-stats",
                    "--node-ip-address",
                    "127.0.0.1",
                    *small,
                    *options,
                ],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )

    def joined(self) -> Node:
        """Wait until the node is part of the cluster, and return it. Raises :class:`BenchError` if the node ends or
        takes longer than ``_START_SECS``."""
        deadline = time.monotonic() + _START_SECS
        while "Ray runtime started" not in (told := self._log.read_text()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"a node does not start: {told[-2000:]}")
            time.sleep(0.1)
        return self

    def family(self) -> list[psutil.Process]:
        """Return all processes of the node. Empty if it has ended."""
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def parts(self, name: str) -> list[psutil.Process]:
        """Return the processes of the node with this name."""
        found = []
        for each in self.family():
            with contextlib.suppress(psutil.Error):
                if each.name() == name:
                    found.append(each)
        return found

    @property
    def is_well(self) -> bool:
        """True if the raylet runs and is not stopped."""
        raylets = self.parts("raylet")
        return bool(raylets) and all(_goes_on(each) for each in raylets)

    def kill(self) -> None:
        """Kill all processes of the node at once, as when its machine loses power."""
        family = self.family()
        for each in family:
            with contextlib.suppress(psutil.Error):
                each.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECS)
        psutil.wait_procs(family, _END_SECS)


class Nodes:
    """A cluster of a head and ``count`` other nodes.

    Args:
        folder: folder for the files of the nodes. Its path has to be short, since Ray's sockets are below it.
        count: number of nodes beside the head.

    ``env`` has the variables with which a process can connect to the cluster at ``address``.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._started = 0
        self._unwell: dict[int, float] = {}  # time at which a node was first seen unwell, by its index
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_worker_niceness": "0"}
        self.address = ""
        self.head: Node | None = None
        self.others: list[Node] = []

    def start(self) -> None:
        """Start a new cluster. The previous cluster, if any, is ended first. Raises :class:`BenchError`."""
        self.close()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        files = str(self._folder / f"t{self._started}")
        self.head = self._joined("--head", "--port", str(port), "--temp-dir", files, "--include-dashboard", "false")
        # The other nodes start in parallel, as separate machines would.
        begun = [self._added("--address", self.address) for _ in range(self._count)]
        self.others = [self._joined("--address", self.address, begun=node) for node in begun]

    def _added(self, *options: str) -> Node:
        self._started += 1
        return Node(self._folder / f"node-{self._started}.log", {**os.environ, **self.env}, *options)

    def _joined(self, *options: str, begun: Node | None = None) -> Node:
        """Return a node that is part of the cluster: ``begun``, which is already starting, or a new node. Ray ends a
        node that has not started within half a minute. That happens on a busy machine, so the start is tried again.
        Raises :class:`BenchError` after the last attempt."""
        for attempt in range(_ATTEMPTS):
            node = begun if begun is not None and attempt == 0 else self._added(*options)
            try:
                return node.joined()
            except BenchError:
                node.kill()
                if attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError("there is at least one attempt")

    @property
    def is_well(self) -> bool:
        """True if the head node and its GCS server run. The other nodes may fail."""
        if self.head is None or not self.head.is_well:
            return False
        servers = self.head.parts("gcs_server")
        return bool(servers) and all(_goes_on(each) for each in servers)

    def mend(self) -> None:
        """Replace nodes that have ended, or have been stopped for a minute, as an operator would."""
        for at, node in enumerate(self.others):
            if node.is_well:
                self._unwell.pop(at, None)
                continue
            since = self._unwell.setdefault(at, time.monotonic())
            if node.process.poll() is not None or time.monotonic() - since > _STOPPED_SECS:
                node.kill()
                self.others[at] = self._added("--address", self.address)
                self._unwell[at] = time.monotonic()  # the new node has a minute to start

    def victims(self) -> dict[str, list[list[psutil.Process]]]:
        """Return the parts of the cluster that can be killed or stopped, by kind, as groups of processes."""
        found: dict[str, list[list[psutil.Process]]] = {}
        if self.head is not None:
            for name in ("gcs_server", "raylet"):
                found[f"{name} of the head"] = [[each] for each in self.head.parts(name)]
        found["raylet"] = [[each] for node in self.others for each in node.parts("raylet")]
        found["node"] = [family for node in self.others if (family := node.family())]
        return {role: groups for role, groups in found.items() if groups}

    def close(self) -> None:
        """Kill all nodes."""
        for node in (self.head, *self.others):
            if node is not None:
                node.kill()
        self.head, self.others = None, []
        self._unwell.clear()


def _goes_on(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))
    return False
