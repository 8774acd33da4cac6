"""A tuning run as a job on a real Ray cluster with token authentication: submit, finish, stop, resume."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_tune.base.errors import UserError
from tests.helpers.guide_cluster import RAY, Head, Served, block, changed, environment, free_ports, shell, wait_until

MODEL = "examples/networks.py:mlp"

# The first start of a worker on a busy machine of two cores takes long; nothing here waits for a time to pass.
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A cluster of one machine, by the commands of the guide."""
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as text:
        home = Path(text)
        made = shell(block("The token"), environment(home))
        assert made.returncode == 0, made.stderr
        port, dashboard, client, agent = free_ports(4)
        here = (
            f"--ray-client-server-port {client} --dashboard-agent-listen-port {agent} --object-store-memory 200000000"
        )
        start = changed(
            block("One machine"),
            {
                ". .venv/bin/activate": f". {RAY.with_name('activate')}",
                "--port 6379": f"--port {port}",
                "--dashboard-port 8265": f"--dashboard-port {dashboard}",
                "/tmp/ft-ray": f"{home}/t",
                " > ray-head.log 2>&1 & echo $! > ray-head.pid": f" {here} --num-cpus {len(os.sched_getaffinity(0))}",
            },
        )
        node = Served(start, environment(home), home / "head.log")
        try:
            yield Head(home, port, dashboard, node).ready()
        finally:
            node.end()


def submit(head: Head, job: str, *entrypoint: str) -> None:
    done = head.job("submit", "--no-wait", "--submission-id", job, "--working-dir", ".", "--", *entrypoint)
    assert done.returncode == 0, done.stdout + done.stderr


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
    from fleet_tune.base.records.stores.reader import RecordReader

    with RecordReader(out / "records.db") as reader:
        return [record.uid for record in reader]


def _count(out: Path) -> int:
    """Records in the store, 0 while there is none or it is being made."""
    try:
        return len(_uids(out))
    except UserError:
        return 0


def _result(head: Head, job: str) -> Path:
    """The file that the log of a job names."""
    [named] = [line for line in head.logs(job).splitlines() if line.startswith("result: ")]
    return Path(named.removeprefix("result: "))


def _wait_for_end(head: Head, job: str, deadline_secs: float) -> str:
    ended = ("SUCCEEDED", "FAILED", "STOPPED")
    wait_until(lambda: head.status(job) in ended, f"the end of {job}", deadline_secs, lambda: head.logs(job))
    return head.status(job)


def test_a_stopped_job_loses_no_record_and_another_resumes_and_leaves_its_results(head: Head, tmp_path: Path) -> None:
    out = tmp_path / "out"
    submit(head, "first", *_tune(out, "--time-budget", "10m"))
    wait_until(
        lambda: _count(out) >= 5 or head.status("first") == "FAILED",
        "a record",
        240,
        lambda: head.logs("first"),
    )
    before = _uids(out)
    assert len(before) >= 5, head.logs("first")
    *_, stop = block("Submit a tuning run", "ray job stop").splitlines()
    stopped = shell(changed(stop, {"8265": str(head.dashboard_port), "resnet18": "first"}), head.env)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert head.status("first") == "STOPPED"
    assert "Stopped early. Everything measured is stored." in head.logs("first")
    assert json.loads(_result(head, "first").read_text())["interrupted"] is True
    after = _uids(out)
    assert after[: len(before)] == before

    submit(head, "second", *_tune(out, "--trials", str(len(after) + 6)))
    assert _wait_for_end(head, "second", 300) == "SUCCEEDED", head.logs("second")
    assert _result(head, "second") == out / "result.json"
    result = json.loads((out / "result.json").read_text())
    assert (result["interrupted"], result["new_trials"] >= 6) == (False, True)
    resumed = _uids(out)
    assert resumed[: len(after)] == after
    assert len(resumed) >= len(after) + 6

    from fleet_tune.base.domain import Outcome
    from fleet_tune.base.records.stores.reader import RecordReader

    with RecordReader(out / "records.db") as reader:
        measured = [
            (record.task_id, record.candidate.id)
            for record in reader
            if record.measurement.outcome is not Outcome.DEVICE_LOST and not record.revision  # a shoot-out's
        ]
    assert len(measured) == len(set(measured)), "a candidate was measured twice"

    # At the absolute path, and nothing in the copy of the working directory that Ray ran the job in.
    assert json.loads((out / "manifest.json").read_text())["tasks"]
    assert not list(Path(head.home, "t").rglob("records.db"))

    import torch

    import fleet_tune
    from examples.networks import mlp

    model, inputs = mlp()
    with torch.inference_mode():
        expected = model(*inputs)
    torch.testing.assert_close(torch.as_tensor(fleet_tune.load(out)(*inputs)), expected, rtol=1e-3, atol=1e-4)


def test_two_jobs_share_the_device_of_this_host_in_turns(head: Head, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    # Random candidates: the tasks never count as finished.
    submit(head, "shared-1", *_tune(first, "--time-budget", "10m", "--no-store", "--method", "random"))
    wait_until(
        lambda: _count(first) >= 5 or head.status("shared-1") == "FAILED",
        "a record",
        240,
        lambda: head.logs("shared-1"),
    )
    submit(head, "shared-2", *_tune(second, "--trials", "9", "--no-store", "--json"))
    wait_until(
        lambda: _count(second) >= 5 or head.status("shared-2") == "FAILED",
        "its turn",
        240,
        lambda: head.logs("shared-2"),
    )
    assert head.status("shared-1") == "RUNNING", head.logs("shared-1")
    assert head.job("stop", "shared-1").returncode == 0
    assert _wait_for_end(head, "shared-2", 300) == "SUCCEEDED", head.logs("shared-2")
    assert _count(second) >= 9
    assert json.loads((second / "manifest.json").read_text())["tasks"]
    # Before it began or later, which the other one's batches decide.
    assert "device local: it is the turn of" in head.logs("shared-2"), "it did not wait for the other one"
