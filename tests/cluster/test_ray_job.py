"""A tuning run as a job on a real Ray cluster with token authentication: submit, finish, stop, resume."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from fleet_tune.errors import UserError

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
MODEL = "examples/networks.py:mlp"
_PR_SET_PDEATHSIG = 1

# The first start of a worker on a busy machine of two cores takes long; nothing here waits for a time to pass.
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@dataclass(frozen=True)
class Head:
    """A head node that this test started."""

    address: str
    token: str
    env: dict[str, str]
    log: Path

    def ray(self, *arguments: str, timeout_secs: float = 120.0, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(RAY), *arguments],
            cwd=ROOT,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_secs,
            check=False,
        )

    def job(self, verb: str, *arguments: str, timeout_secs: float = 120.0) -> subprocess.CompletedProcess[str]:
        return self.ray("job", verb, "--address", self.address, *arguments, timeout_secs=timeout_secs)

    def submit(self, job: str, *entrypoint: str) -> None:
        done = self.job("submit", "--no-wait", "--submission-id", job, "--working-dir", ".", "--", *entrypoint)
        assert done.returncode == 0, done.stdout + done.stderr

    def status(self, job: str) -> str:
        return str(self.get(f"/api/jobs/{job}")["status"])

    def get(self, path: str) -> dict[str, Any]:
        """The JSON answer of the dashboard, which `ray job` takes too but prints as prose."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with urlopen(Request(self.address + path, headers=headers), timeout=30) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer

    def answers(self) -> bool:
        try:
            return bool(self.get("/api/version"))
        except OSError:
            return False

    def logs(self, job: str) -> str:
        return self.job("logs", job).stdout[-5000:]


def wait_until(condition: Callable[[], bool], what: str, deadline_secs: float, explain: Callable[[], str]) -> None:
    end = time.monotonic() + deadline_secs
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {deadline_secs:.0f} s\n{explain()}"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, outside of those that Ray keeps for its workers."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            probe = socket.socket()
            probe.bind(("127.0.0.1", 0))
            if 10001 <= probe.getsockname()[1] <= 19999:
                probe.close()
                continue
            sockets.append(probe)
        return [probe.getsockname()[1] for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def _end_with_parent() -> None:
    """The head node gets SIGTERM when this process ends in whatever way."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _group_alive(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state != "Z":
            return True
    return False


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """`ray start --head --block` as the leader of a process group of its own, ended by its pid (never `ray stop`)."""
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        port, dashboard, client, agent = _free_ports(4)
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            # A job's `python` is the first on the head's PATH.
            "PATH": f"{RAY.parent}:{env['PATH']}",
        }
        log = folder / "head.log"
        options = {
            "--port": port,
            "--dashboard-host": "127.0.0.1",
            "--dashboard-port": dashboard,
            "--ray-client-server-port": client,
            "--dashboard-agent-listen-port": agent,
            "--temp-dir": folder / "t",
            "--num-cpus": len(os.sched_getaffinity(0)),
            "--object-store-memory": 200_000_000,
        }
        words = [str(word) for pair in options.items() for word in pair]
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(RAY), "start", "--head", "--block", "--disable-usage-stats", *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        head = Head(f"http://127.0.0.1:{dashboard}", token.read_text(), env, log)
        try:
            wait_until(
                lambda: process.poll() is not None or head.answers(), "the start of the head node", 120, log.read_text
            )
            assert process.poll() is None, log.read_text()
            yield head
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=45)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            try:
                wait_until(lambda: not _group_alive(process.pid), "the end of the head node", 60, log.read_text)
            finally:
                if _group_alive(process.pid):
                    os.killpg(process.pid, signal.SIGKILL)


def _tune(out: Path, *options: str) -> list[str]:
    return [
        "python",
        "-m",
        "fleet_tune",
        "tune",
        MODEL,
        "--out",
        str(out),
        "--address",
        "auto",
        "--seed",
        "1",
        *options,
    ]


def _uids(out: Path) -> list[str]:
    from fleet_tune.records.reader import RecordReader

    with RecordReader(out / "records.db") as reader:
        return [record.uid for record in reader]


def _count(out: Path) -> int:
    """Records in the store, 0 while there is none or it is being made."""
    try:
        return len(_uids(out))
    except UserError:
        return 0


def _wait_for_end(head: Head, job: str, deadline_secs: float) -> str:
    ended = ("SUCCEEDED", "FAILED", "STOPPED")
    wait_until(lambda: head.status(job) in ended, f"the end of {job}", deadline_secs, lambda: head.logs(job))
    return head.status(job)


def test_cluster_refuses_clients_without_the_token(head: Head) -> None:
    done = head.ray("job", "list", "--address", head.address, RAY_AUTH_MODE="disabled")
    assert done.returncode != 0
    assert "Authentication" in done.stdout + done.stderr


def test_a_stopped_job_loses_no_record_and_another_resumes_and_leaves_its_results(head: Head, tmp_path: Path) -> None:
    out = tmp_path / "out"
    head.submit("first", *_tune(out, "--time-budget", "10m"))
    wait_until(
        lambda: _count(out) >= 5 or head.status("first") == "FAILED",
        "a record",
        240,
        lambda: head.logs("first"),
    )
    before = _uids(out)
    assert len(before) >= 5, head.logs("first")
    stopped = head.job("stop", "first")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert head.status("first") == "STOPPED"
    after = _uids(out)
    assert after[: len(before)] == before

    head.submit("second", *_tune(out, "--trials", str(len(after) + 6)))
    assert _wait_for_end(head, "second", 300) == "SUCCEEDED", head.logs("second")
    resumed = _uids(out)
    assert resumed[: len(after)] == after
    assert len(resumed) >= len(after) + 6

    from fleet_tune.domain import Outcome
    from fleet_tune.records.reader import RecordReader

    with RecordReader(out / "records.db") as reader:
        measured = [
            (record.task_id, record.candidate.id)
            for record in reader
            if record.measurement.outcome is not Outcome.DEVICE_LOST and not record.revision  # a shoot-out's
        ]
    assert len(measured) == len(set(measured)), "a candidate was measured twice"

    # At the absolute path, and nothing in the copy of the working directory that Ray ran the job in.
    assert json.loads((out / "manifest.json").read_text())["tasks"]
    assert not list(Path(head.log.parent, "t").rglob("records.db"))

    import torch

    import fleet_tune
    from examples.networks import mlp

    model, inputs = mlp()
    with torch.inference_mode():
        expected = model(*inputs)
    torch.testing.assert_close(torch.as_tensor(fleet_tune.load(out)(*inputs)), expected, rtol=1e-3, atol=1e-4)


def test_two_jobs_share_the_device_of_this_host_in_turns(head: Head, tmp_path: Path) -> None:
    outs = {f"shared-{number}": tmp_path / str(number) for number in (1, 2)}
    for job, out in outs.items():
        head.submit(job, *_tune(out, "--trials", "24", "--no-store", "--json"))
    for job in outs:
        assert _wait_for_end(head, job, 300) == "SUCCEEDED", head.logs(job)
    waited = 0.0
    for job, out in outs.items():
        assert _count(out) >= 24
        assert json.loads((out / "manifest.json").read_text())["tasks"]
        [line] = [line for line in head.logs(job).splitlines() if line.startswith('{"')]
        [shares] = json.loads(line)["device_time"].values()
        waited += shares.get("turn", 0.0)
    assert waited > 0.0, "neither of them waited for the other"
