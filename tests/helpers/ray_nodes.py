"""Nodes of a Ray cluster as child processes, and a run on it."""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from devices.host.children.parent import end_with_parent

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
DEADLINE_SECS = 300.0
BYTES = ("--object-store-memory", "100000000")
LOOPBACK = ("--node-ip-address", "127.0.0.1")


def free_address() -> str:
    """Return a free address of loopback for a head."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def environment(folder: Path, machine: str = "") -> dict[str, str]:
    """Return the environment that uses the cluster of this folder, by its token. ``machine``: has a folder of its own
    for temporary files, and so quiet windows of its own."""
    token = folder / "token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    own = folder / machine
    own.mkdir(exist_ok=True)
    return {**others, **ray, "PYTHONPATH": str(ROOT), **({"TMPDIR": str(own)} if machine else {})}


class Node:
    """``ray start --block`` in a session of its own, with the processes that it starts. ``machine``: as of
    :func:`environment`."""

    def __init__(self, folder: Path, *options: str, machine: str = "") -> None:
        self._log = (folder / f"node-{time.monotonic_ns()}.log").open("w")
        self.process = subprocess.Popen(
            [str(RAY), "start", "--block", "--disable-usage-stats", "--num-cpus", "2", *BYTES, *LOOPBACK, *options],
            env=environment(folder, machine),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )

    def joined(self) -> Node:
        """Itself, once it is part of the cluster."""
        deadline = time.monotonic() + DEADLINE_SECS
        while "Ray runtime started" not in (told := Path(self._log.name).read_text()):
            assert self.process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
        return self

    @classmethod
    def head(cls, folder: Path, address: str, machine: str = "") -> Node:
        """The first node of a cluster at this address."""
        port = address.rpartition(":")[2]
        here = ("--temp-dir", str(folder / "t"), "--include-dashboard", "false")
        return cls(folder, "--head", "--port", port, *here, machine=machine)

    def part(self, name: str) -> psutil.Process:
        """Its raylet, say."""
        [found] = [each for each in self.family() if each.name() == name]
        return found

    def family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def kill(self) -> None:
        """All of it at once, as when its machine loses its power."""
        for each in self.family():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(60)
        self._log.close()


class Run:
    """See :mod:`tests.helpers.cluster_run`."""

    def __init__(self, address: str, folder: Path, machine: str = "") -> None:
        self.store = folder / "records.db"
        self.lines: list[dict[str, Any]] = []
        self._coming: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.cluster_run", address, str(folder)],
            env=environment(folder.parent, machine),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._coming.put(line)
        self._coming.put(None)

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The next line of which this is true."""
        deadline = time.monotonic() + DEADLINE_SECS
        while True:
            try:
                line = self._coming.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not within {DEADLINE_SECS:g} s: {what}: {self.lines[-20:]}") from None
            assert line is not None, f"the run ended before {what}: {self.lines[-20:]}"
            if line.startswith("{"):
                self.lines.append(json.loads(line))
                if condition(self.lines[-1]):
                    return self.lines[-1]

    def more(self, count: int = 20) -> dict[str, Any]:
        """The line by which so many more records are acknowledged."""
        least = count + max((line["records"] for line in self.lines if "records" in line), default=0)
        return self.until(lambda line: line.get("records", 0) >= least, f"{least} records")

    def told(self, *texts: str) -> None:
        """Until people have been told all of these, in any order."""
        missing = set(texts)

        def all_told(line: dict[str, Any]) -> bool:
            missing.difference_update([text for text in missing if text in line.get("notice", "")])
            return not missing

        self.until(all_told, " and ".join(texts))

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
