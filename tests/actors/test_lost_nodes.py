"""Parts of a real cluster of two nodes are killed and stopped while a run of recorded devices goes on: a node that is
gone costs what was on it, and without its head the run ends with one line."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet_tune.records.reader import RecordReader

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
DEADLINE_SECS = 180.0
_PR_SET_PDEATHSIG = 1

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def _end_with_parent() -> None:
    """A node gets SIGTERM when this process ends in whatever way."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(folder: Path) -> dict[str, str]:
    """In which the cluster of this folder is used, by its token."""
    token = folder / "token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    return {**others, **ray, "PYTHONPATH": str(ROOT)}


class Node:
    """``ray start --block`` in a session of its own, with the processes that it starts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._log = (folder / f"node-{time.monotonic_ns()}.log").open("w")
        self.process = subprocess.Popen(
            [str(RAY), "start", "--block", "--disable-usage-stats", "--num-cpus", "2", *options],
            env=environment(folder),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )

    def joined(self) -> Node:
        """Itself, once it is part of the cluster."""
        deadline = time.monotonic() + DEADLINE_SECS
        while "Ray runtime started" not in (told := Path(self._log.name).read_text()):
            assert self.process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
        return self

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

    def __init__(self, address: str, folder: Path) -> None:
        self.store = folder / "records.db"
        self.lines: list[dict[str, Any]] = []
        self._coming: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.cluster_run", address, str(folder)],
            env=environment(folder.parent),
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

    def more(self, count: int = 20) -> None:
        """Until so many more records are acknowledged."""
        least = count + max((line["records"] for line in self.lines if "records" in line), default=0)
        self.until(lambda line: line.get("records", 0) >= least, f"{least} records")

    def told(self, text: str) -> None:
        self.until(lambda line: text in line.get("notice", ""), text)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


def stored_once(store: Path) -> int:
    """Trials in the store, each of which is there once."""
    with RecordReader(store) as reader:
        tried = Counter(record.candidate.id for record in reader if record.revision == 0)
    assert max(tried.values()) == 1
    return tried.total()


def test_a_node_that_is_gone_costs_what_was_on_it_and_a_head_that_is_gone_ends_the_run(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    store_bytes = ("--object-store-memory", "100000000")
    loopback = ("--node-ip-address", "127.0.0.1")
    here = ("--temp-dir", str(folder / "t"), "--include-dashboard", "false")
    nodes = [Node(folder, "--head", "--port", str(port), *loopback, *here, *store_bytes)]
    runs: list[Run] = []
    try:
        head = nodes[0].joined()
        (folder / "first").mkdir()
        (folder / "second").mkdir()

        def node_added() -> Node:
            nodes.append(Node(folder, "--address", address, *loopback, *store_bytes))
            return nodes[-1].joined()

        # A raylet that is killed, then a whole node.
        other = node_added()
        run = Run(address, folder / "first")
        runs.append(run)
        assert len(set(run.until(lambda line: "nodes" in line, "its nodes")["nodes"])) == 2
        run.more()
        other.part("raylet").kill()
        run.told("answers again")
        run.more()

        # The cluster's server, which stands still: Ray would go on for a minute, and then end without a word of it.
        server = head.part("gcs_server")
        server.suspend()
        try:
            lost = run.until(lambda line: "lost" in line, "the cluster is lost")["lost"]
            assert re.fullmatch(f"nobody answers at .*:{port} any more", lost)
        finally:
            server.resume()
        assert run.process.wait(DEADLINE_SECS) == 0
        assert stored_once(run.store) >= 40

        # A head that is killed.
        run = Run(address, folder / "second")
        runs.append(run)
        run.more()
        head.kill()
        lost = run.until(lambda line: "lost" in line, "the cluster is lost")["lost"]
        assert re.fullmatch(
            f"nobody listens at .*:{port} any more|Ray's raylet .* was killed, or ended by itself", lost
        )
        assert run.process.wait(DEADLINE_SECS) == 0
        assert stored_once(run.store) >= 20
    finally:
        for each in runs:
            each.end()
        for node in nodes:
            node.kill()
