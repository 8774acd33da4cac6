"""The service as a process on this machine: two networks, and a device server that is slowed down.

``RETUNE_SOAK_SECS`` says how long it goes on after everything was seen once: ``make soak`` takes 30 minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import fleet_tune
from tests.helpers.commands import fleet_tune_here

ROOT = Path(__file__).parents[3]
SOAK_SECS = float(os.environ.get("RETUNE_SOAK_SECS", "0"))
DEADLINE_SECS = 900.0
RUNS_SECS, STANDS_SECS = 0.002, 0.01
DEVICES_EVERY_SECS = 20.0
NETWORKS = """\
import torch

def wide():
    torch.manual_seed(0)  # the same network at each call
    layers = [torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(512, 1024),)

def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval(), (torch.randn(8, 64),)
"""
FILE = """\
folder = "kept"
fleet = "fleet.toml"
hook = ["./deploy.sh"]
[[network]]
name = "wide"
path = "networks.py:wide"
calls_per_day = 1
[[network]]
name = "small"
path = "networks.py:small"
calls_per_day = 1
[time]
share = 1.0
span = "8s"
payback = "1s"
[watch]
files_every = "1s"
devices_every = 20
slower = 0.3
drift = 10.0
again = "1s"
"""

pytestmark = [pytest.mark.timeout(5 * DEADLINE_SECS + 2 * SOAK_SECS), pytest.mark.soak]


@contextlib.contextmanager
def device_server(key: Path) -> Iterator[tuple[psutil.Process, int]]:
    command = [sys.executable, "-m", "fleet_tune", "device", "serve", "--port", "0", "--threads", "1"]
    with subprocess.Popen(
        [*command, "--key-file", str(key)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            match = re.search(r"ready on .*:(\d+) \(", process.stdout.readline())
            assert match is not None
            yield psutil.Process(process.pid), int(match[1])
        finally:
            process.terminate()
            process.communicate(timeout=60)


def status(process: psutil.Process) -> str | None:
    """None for one that has ended."""
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return None


def is_alive(process: psutil.Process) -> bool:
    return status(process) not in (None, psutil.STATUS_ZOMBIE)


class Slowed:
    """While it is entered, whatever runs for the device server stands still for five sixths of the time: also where
    others use the machine, and it had a half."""

    def __init__(self, server: psutil.Process) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._slow_down)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _slow_down(self) -> None:
        known: list[psutil.Process] = []
        looked_at = 0.0
        while not self._over.is_set():
            if time.monotonic() - looked_at > 0.5:
                known, looked_at = self._server.children(recursive=True), time.monotonic()
            for number, secs in ((signal.SIGSTOP, STANDS_SECS), (signal.SIGCONT, RUNS_SECS)):
                for process in known:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                time.sleep(secs)


class Kept:
    """A file of the service, and what it knows. ``process``: of the service that was started last."""

    process: subprocess.Popen[str]

    def __init__(self, folder: Path, port: int, key: Path) -> None:
        self.folder = folder
        self.file = folder / "retune.toml"
        self.file.write_text(FILE)
        (folder / "networks.py").write_text(NETWORKS)
        (folder / "fleet.toml").write_text(
            f'[[device]]\nname = "board"\nconnect = "127.0.0.1:{port}"\nkey_file = "{key}"\nthreads = 1\n'
            'device_class = "board"\n'
        )
        deploy = folder / "deploy.sh"
        deploy.write_text(f'#!/bin/sh\necho "$FLEET_TUNE_NETWORK $FLEET_TUNE_VERSION" >> {folder}/deployed\n')
        deploy.chmod(0o755)

    @contextlib.contextmanager
    def service(self) -> Iterator[subprocess.Popen[str]]:
        with (self.folder / "service.txt").open("a") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "fleet_tune", "retune", str(self.file)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.process = process
        try:
            yield process
        finally:
            process.terminate()
            process.wait(120)

    @property
    def state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.folder / "kept" / "state.json").read_text())
            return state
        except FileNotFoundError:
            return {"deployments": [], "events": []}

    def deployment(self, network: str) -> dict[str, Any]:
        return next(each for each in self.state["deployments"] if each["network"] == network)

    def events(self, kinds: str, network: str, after: float) -> list[dict[str, Any]]:
        """Those of some kinds since a unix time: the state forgets the oldest."""
        return [
            each
            for each in self.state["events"]
            if each["kind"] in kinds.split() and each["network"] == network and each["at"] >= after
        ]

    def found_slower(self, after: float) -> list[dict[str, Any]]:
        """The triggers of the wide network of this kind."""
        return [each for each in self.events("trigger", "wide", after) if "slower: confirmed on board" in each["text"]]

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECS
        while not condition():
            log = (self.folder / "service.txt").read_text()[-3000:]
            assert self.process.poll() is None, f"{what}: the service has ended\n{log}"
            assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECS:g} s\n{log}\n{self.state}"
            time.sleep(0.2)

    def are_watched(self) -> bool:
        """Both networks have a version, with a baseline, and nothing is to be done for either: what is pending would
        come before a check."""
        found = [
            each
            for each in self.state["deployments"]
            if each["version"] and each["baselines"] and not each["pending"] and each["suspicion"] is None
        ]
        return len(found) == 2

    def until_watched_anew(self) -> None:
        """A whole check that began from now on: baselines that were taken while it was slow are taken anew."""
        after = time.time() + 2 * DEVICES_EVERY_SECS
        self.until(
            lambda: self.are_watched() and self.deployment("wide")["checked_at"] > after, "it is looked at again"
        )

    def loads(self, network: str) -> None:
        """What is published runs here."""
        current = (self.folder / "kept" / "networks" / network / "board" / "current").resolve()
        loaded = fleet_tune.load(current)
        shape = (512, 1024) if network == "wide" else (8, 64)
        assert np.isfinite(np.asarray(loaded(np.zeros(shape, np.float32)))).all()


def test_two_networks_and_a_device_that_is_slowed_down(tmp_path: Path) -> None:
    key = tmp_path / "device.key"
    with device_server(key) as (server, port):
        kept = Kept(tmp_path, port, key)
        with kept.service() as process:
            kept.until(kept.are_watched, "a version of both networks")
            again = fleet_tune_here("retune", str(kept.file), "--once")
            assert again.returncode == 2
            assert f"another service (process {process.pid})" in again.stderr
            assert fleet_tune_here("retune", "status", str(kept.file), "--json").json()["running"]
            service = psutil.Process(process.pid)
            at_first = service.memory_info().rss
            begun = time.time()
            with Slowed(server):
                kept.until(lambda: kept.found_slower(begun), "it is seen to be slower")
            kept.until(lambda: kept.events("kept published", "wide", begun), "it is tuned again")
            end = time.monotonic() + SOAK_SECS
            while time.monotonic() < end:
                kept.until_watched_anew()
                begun = time.time()
                with Slowed(server):
                    kept.until(lambda begun=begun: kept.found_slower(begun), "slower again")  # type: ignore[misc]
            assert service.memory_info().rss < 1.2 * at_first + (16 << 20)
            of_service = service.children(recursive=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 128 + signal.SIGTERM
            deadline = time.monotonic() + 120
            while any(map(is_alive, of_service)):
                assert time.monotonic() < deadline, f"it has left {[each for each in of_service if is_alive(each)]}"
                time.sleep(0.2)
        assert not [each for each in server.children(recursive=True) if status(each) == psutil.STATUS_STOPPED]
        for network in ("wide", "small"):
            kept.loads(network)
        deployed = (tmp_path / "deployed").read_text().split("\n")
        assert {"wide 1", "small 1"} <= set(deployed)
        assert not kept.state["hook_failures"]
        versions = {network: kept.deployment(network)["version"] for network in ("wide", "small")}
        done = fleet_tune_here("retune", "status", str(kept.file), "--json").json()
        assert not done["running"]
        assert {each["network"]: each["version"] for each in done["deployments"]} == versions
        # It goes on where it was: what was being tuned when it ended is tuned, on top of what was known.
        spans = kept.deployment("wide")["spans"]
        begun = time.time()
        with kept.service():
            kept.until(kept.are_watched, "what was pending is done after a restart")
        assert not kept.events("published", "small", begun)
        if SOAK_SECS:
            assert kept.events("kept published", "wide", begun)
            assert kept.deployment("wide")["spans"][-2] == spans[-1]
