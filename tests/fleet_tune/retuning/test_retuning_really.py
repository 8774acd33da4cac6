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
DEADLINE_SECS = 400.0
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

pytestmark = [pytest.mark.timeout(1500 + 2 * SOAK_SECS), pytest.mark.soak]


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
    """A file of the service, and what it knows."""

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

    def events(self, kind: str, network: str, after: int = 0) -> list[dict[str, Any]]:
        return [each for each in self.state["events"][after:] if (each["kind"], each["network"]) == (kind, network)]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECS
        while not condition():
            log = (self.folder / "service.txt").read_text()[-3000:]
            assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECS:g} s\n{log}"
            time.sleep(0.2)

    def are_watched(self) -> bool:
        """Both networks have a version, with a baseline."""
        found = [each for each in self.state["deployments"] if each["version"] and each["baselines"]]
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
            seen = len(kept.state["events"])
            with Slowed(server):
                kept.until(lambda: bool(kept.events("trigger", "wide", seen)), "it is seen to be slower")
            kept.until(
                lambda: bool(kept.events("kept", "wide", seen) or kept.events("published", "wide", seen)),
                "it is tuned again",
            )
            [trigger] = kept.events("trigger", "wide", seen)
            assert "slower: confirmed on board" in trigger["text"]
            end = time.monotonic() + SOAK_SECS
            while time.monotonic() < end:
                kept.until_watched_anew()
                seen = len(kept.state["events"])
                with Slowed(server):
                    kept.until(lambda seen=seen: bool(kept.events("trigger", "wide", seen)), "slower again")  # type: ignore[misc]
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 128 + signal.SIGTERM
        assert not [each for each in server.children(recursive=True) if each.status() == psutil.STATUS_STOPPED]
        for network in ("wide", "small"):
            kept.loads(network)
        deployed = (tmp_path / "deployed").read_text().split("\n")
        assert {"wide 1", "small 1"} <= set(deployed)
        assert not kept.state["hook_failures"]
        # It goes on where it was: nothing is published anew.
        versions = {network: kept.deployment(network)["version"] for network in ("wide", "small")}
        done = fleet_tune_here("retune", "status", str(kept.file), "--json").json()
        assert not done["running"]
        assert {each["network"]: each["version"] for each in done["deployments"]} == versions
