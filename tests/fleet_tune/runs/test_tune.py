"""Whole runs through the public interface: real TVM, a real device server, real Ray actors, a real database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import platform
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

import fleet_tune
from examples.networks import mlp
from fleet_tune.base.domain import Record
from fleet_tune.base.records.sharing.shared import SharedReader
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.runs.progress_file import saved_progress
from tests.helpers.commands import Done, fleet_tune_here
from tests.helpers.grafana import all_queries
from tests.helpers.guide_cluster import free_ports
from tests.helpers.prometheus import scraping

ROOT = Path(__file__).parents[3]
NETWORK = "examples/networks.py:mlp"
DEADLINE_SECS = 180.0
# Of any machine's kind, and of none's own.
OTHER_CPU = {"x86_64": "x86-64-v2", "aarch64": "generic"}

pytestmark = pytest.mark.timeout(600)


def command(out: Path, *options: str, network: str = NETWORK) -> list[str]:
    return [sys.executable, "-m", "fleet_tune", "tune", network, "--out", str(out), *options]


def run(out: Path, *options: str, network: str = NETWORK) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(out, *options, network=network),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )


def run_here(out: Path, *options: str, network: str = NETWORK) -> Done:
    """As :func:`run`, in this process."""
    return fleet_tune_here("tune", f"{ROOT}/{network}", "--out", str(out), *options)


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECS
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {DEADLINE_SECS:g} s")


def records_in(out: Path) -> int:
    """Records in the store, 0 while there is none."""
    try:
        with RecordReader(out / "records.db") as reader:
            return reader.last_seq()
    except fleet_tune.UserError:
        return 0


def scraped(port: int) -> dict[str, float]:
    """The value of every series that a run serves, by name and labels."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def assert_quiet(stderr: str) -> None:
    """A signal is no crash: no stack is shown, neither Python's nor native code's."""
    assert "Traceback" not in stderr, stderr
    assert "*** SIG" not in stderr, stderr


class Running:
    """A tuning process and everything it started."""

    def __init__(self, out: Path, *options: str) -> None:
        self.out = out
        self.process = subprocess.Popen(
            command(out, "--time-budget", "10m", *options),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.family: set[psutil.Process] = set()

    def until_records(self, count: int) -> None:
        def enough() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return records_in(self.out) >= count

        wait_until(enough, f"{count} records")
        self.family = set(psutil.Process(self.process.pid).children(recursive=True))

    @property
    def folder(self) -> Path:
        """The temporary folder of the run's own cluster."""
        commands = (" ".join(process.cmdline()) for process in self.named("gcs_server"))
        found = (re.search(r"/tmp/fleet-tune-tmp-run-[^/]+", each) for each in commands)
        return next(Path(each[0]) for each in found if each)

    def named(self, name: str) -> list[psutil.Process]:
        """The processes of the run that have this name. Those that have ended meanwhile are left out."""
        found = []
        for process in self.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == name:
                    found.append(process)
        return found

    def end(self, number: int) -> tuple[float, str, str]:
        """Send a signal; returns the seconds until the process ended, its stdout and stderr."""
        started = time.monotonic()
        self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=DEADLINE_SECS)
        return time.monotonic() - started, stdout, stderr

    def survivors(self) -> list[psutil.Process]:
        return [process for process in self.family if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two
        return False


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def start(*options: str) -> Running:
        made.append(Running(tmp_path / "out", *options))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()
        for process in one.survivors():
            process.kill()


@pytest.mark.usefixtures("ray_cluster")
def test_a_network_is_tuned_checked_resumed_and_compiled(tmp_path: Path) -> None:
    out, store = tmp_path / "out", str(tmp_path / "team" / "store.db")
    result = run_here(out, "--trials", "24", "--store", store, "--json", "--seed", "3").json()
    assert result["new_trials"] == 24
    counts = ("records", "known", "settled", "confirmed", "seeded", "shipped", "shipped_confirmed", "taught", "learned")
    nothing = dict.fromkeys(counts, 0)
    assert result["store"] == {"path": store, **nothing}
    assert sum(result["outcomes"].values()) == 24
    (network,) = result["networks"]
    assert min(network["tuned_secs"], network["untuned_secs"]) > 0
    assert network["max_rel_error"] < 1e-4
    assert network["framework_secs"] > 0

    # What is on the disk.
    assert {"network.so", "params.safetensors", "manifest.json", "records.db"} <= {p.name for p in out.iterdir()}
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["measured"]["tuned_secs"] == network["tuned_secs"]
    with RecordReader(out / "records.db") as reader:
        tasks = {task.id: task for task in reader.tasks()}
        for entry in manifest["tasks"] if network["published"] == "tuned" else ():  # so small that it may be untuned
            best = reader.best(entry["id"])
            assert best is not None
            assert entry["best_secs"] == reader.shown_secs(best)
        # One number for one thing: in the summary, and in the store that runs share.
        shown = {task["task_id"]: task["best_secs"] for task in result["tasks"] if task["best_secs"] is not None}
        assert shown == {name: reader.shown_secs(best) for name in tasks if (best := reader.best(name)) is not None}
        with RecordReader(Path(store)) as shared:
            assert shown == {name: pytest.approx(shared.shown_secs(shared.best(name))) for name in shown}
        assert len(tasks) == len(manifest["tasks"])

    # The compiled network computes what the framework computes, on arrays and on tensors.
    module, inputs = mlp()
    expected = module(*inputs).detach().numpy()
    compiled = fleet_tune.load(out)
    np.testing.assert_allclose(compiled(*(x.numpy() for x in inputs)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(compiled(*inputs).numpy(), expected, rtol=1e-4, atol=1e-5)

    # More trials of the same run, which whoever uses it from Python gets one by one.
    seen = asyncio.run(streamed(out, trials=36))
    assert len([record for record in seen if record.revision == 0]) == 12
    with RecordReader(out / "records.db") as reader:
        counts = Counter(record.candidate.id for record in reader if record.revision == 0)
    assert (counts.total(), max(counts.values())) == (36, 1), "nothing is measured twice"
    with SharedReader(out / "records.db") as shared:  # this run had no store: another may take its records later
        assert {record.run_id for record in seen} < {run_id for run_id, _ in shared.run_origins()}
    np.testing.assert_allclose(fleet_tune.load(out)(*inputs).numpy(), expected, rtol=1e-4, atol=1e-5)

    # Compiled again without tuning, into another folder.
    other = tmp_path / "other"
    records = str(out / "records.db")
    rebuilt = fleet_tune_here("compile", f"{ROOT}/{NETWORK}", "--records", records, "--out", str(other))
    assert rebuilt.returncode == 0, rebuilt.stderr
    np.testing.assert_allclose(fleet_tune.load(other)(*inputs).numpy(), expected, rtol=1e-4, atol=1e-5)


async def streamed(out: Path, trials: int) -> list[Record]:
    """Each record of a run, which is durable when it comes."""
    seen = []
    async for record in fleet_tune.stream(str(ROOT / NETWORK), out=out, trials=trials):
        with RecordReader(out / "records.db") as reader:
            assert reader.last_seq() >= record.seq
        seen.append(record)
    return seen


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_what_a_store_knows_is_not_measured_again_and_what_another_version_knew_is_confirmed(tmp_path: Path) -> None:
    out, store = tmp_path / "out", str(tmp_path / "team" / "store.db")
    assert run_here(out, "--trials", "24", "--store", store, "--json", "--seed", "3").json()["new_trials"] == 24
    with RecordReader(out / "records.db") as reader:
        bests = {task.id: reader.best(task.id) for task in reader.tasks()}
    module, inputs = mlp()
    expected = module(*inputs).detach().numpy()

    # In another folder the same command finds all of it in the store that both share, and measures nothing.
    again = run_here(tmp_path / "again", "--trials", "24", "--store", store, "--json", "--seed", "4").json()
    assert (again["new_trials"], again["store"]["settled"]) == (0, len(again["tasks"]))
    assert {task["finish_reason"] for task in again["tasks"]} == {"found in the store"}
    assert again["networks"][0]["checked_on"] == "this machine"
    assert not any(task["described"] for task in again["tasks"]), "nobody searches for them"
    with RecordReader(tmp_path / "again" / "records.db") as second:
        for task_id, best in bests.items():
            found = second.best(task_id)
            assert found is not None
            assert best is not None
            assert found.candidate.id == best.candidate.id
    np.testing.assert_allclose(fleet_tune.load(tmp_path / "again")(*inputs).numpy(), expected, rtol=1e-4, atol=1e-5)

    # What another version has measured is confirmed: tried again, a few candidates of each task.
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        connection.execute('UPDATE origins SET body = replace(body, \'"kernels": "\', \'"kernels": "before\')')
    later = run_here(tmp_path / "later", "--trials", "24", "--store", store, "--json", "--seed", "5").json()
    assert later["store"]["confirmed"] == len(later["tasks"])
    assert 0 < later["new_trials"] <= 3 * len(later["tasks"])
    assert all(task["finish_reason"].startswith("confirmed") for task in later["tasks"])
    np.testing.assert_allclose(fleet_tune.load(tmp_path / "later")(*inputs).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_signal_keeps_what_is_acknowledged_and_leaves_no_process(running: Callable[..., Running]) -> None:
    run_ = running()
    run_.until_records(5)
    before = records_in(run_.out)
    _, stdout, stderr = run_.end(signal.SIGTERM)
    assert run_.process.returncode == 143, stderr
    assert_quiet(stderr)
    assert "trials" in stdout, "the summary of what was found"
    assert records_in(run_.out) >= before
    wait_until(lambda: not run_.survivors(), "all processes are gone")


def test_a_signal_while_starting_ends_the_run(running: Callable[..., Running]) -> None:
    run_ = running()
    wait_until(lambda: psutil.Process(run_.process.pid).children(), "something was started")
    run_.family = set(psutil.Process(run_.process.pid).children(recursive=True))
    _, _, stderr = run_.end(signal.SIGINT)
    assert run_.process.returncode == 130, stderr
    assert_quiet(stderr)
    wait_until(lambda: not run_.survivors(), "all processes are gone")


@pytest.mark.parametrize(
    ("name", "number", "what"),
    [
        ("gcs_server", signal.SIGKILL, "was killed, or ended by itself"),
        pytest.param("raylet", signal.SIGSTOP, "was stopped (SIGSTOP), and did not go on", marks=pytest.mark.long),
    ],
)
def test_a_run_whose_cluster_is_killed_or_stopped_ends_with_one_line_and_leaves_no_process(
    running: Callable[..., Running], name: str, number: signal.Signals, what: str
) -> None:
    run_ = running()
    run_.until_records(1)
    folder = run_.folder
    [victim] = run_.named(name)
    victim.send_signal(number)
    _, stderr = run_.process.communicate(timeout=DEADLINE_SECS)
    assert run_.process.returncode == 2, stderr
    assert_quiet(stderr)
    told = [line for line in stderr.splitlines() if re.match("error|next|.*[Tt]raceback|.*E ", line)]
    assert told == [
        f"error: the Ray cluster of this run is lost: Ray's {name} (process {victim.pid}) {what}",
        "next: run the same command again: it resumes",
    ]
    wait_until(lambda: not run_.survivors(), "all processes are gone")
    assert not folder.exists()
    assert records_in(run_.out) >= 1


_NOT_IN_EACH_RUN = (
    "temperature_celsius",  # virtual machines have no sensor
    "clock_hertz",
    "device_return_seconds",  # no device was lost
    "network_latency_seconds",  # comes at the end
)
"""Metrics that a run of this machine that is under way may not have."""


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.long
def test_a_run_serves_metrics_and_is_resumed_after_a_kill(
    running: Callable[..., Running], free_port: int, prometheus_dir: Path, tmp_path: Path
) -> None:
    run_ = running("--metrics-port", str(free_port))
    unanswered = [query for query in all_queries() if not any(name in query for name in _NOT_IN_EACH_RUN)]

    def answered() -> bool:
        """True once Prometheus has answered every query of the dashboards and of the recording rules."""
        assert run_.process.poll() is None, (unanswered, run_.process.communicate())
        unanswered[:] = [each for each in unanswered if all(map(math.isnan, query(each)))]
        return not unanswered

    wait_until(lambda: saved_progress(run_.out), "what the run does")
    with scraping(prometheus_dir, free_port, free_ports(1)[0], tmp_path) as query:
        wait_until(answered, "answers to all queries")
    run_.until_records(8)
    counters = (
        'fleet_tune_trials_total{outcome="ok"}',
        "fleet_tune_build_seconds_count",
        "fleet_tune_measure_seconds_count",
    )

    def counted() -> bool:
        """Each counter is there from the start, at 0."""
        assert run_.process.poll() is None, run_.process.communicate()
        values = scraped(free_port)
        return all(values[name] >= 1 for name in counters)

    wait_until(counted, "a built and measured trial in the metrics")
    folder = run_.folder
    run_.end(signal.SIGKILL)
    wait_until(lambda: not run_.survivors(), "all processes are gone")
    stored = records_in(run_.out)
    assert stored >= 8
    assert folder.exists()
    assert run_here(run_.out, "--trials", str(stored + 10), "--json").json()["new_trials"] == 10
    assert not folder.exists()
    assert saved_progress(run_.out) is None
    with RecordReader(run_.out / "records.db") as reader:
        assert max(Counter(record.candidate.id for record in reader if record.revision == 0).values()) == 1


@pytest.mark.usefixtures("ray_cluster")
def test_a_served_device_is_tuned_over_its_port(tmp_path: Path, free_port: int) -> None:
    serving = subprocess.Popen(
        [sys.executable, "-m", "fleet_tune", "device", "serve", "--no-key", "--port", str(free_port), "--threads", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        assert "ready" in serving.stdout.readline()
        fleet = tmp_path / "fleet.toml"
        fleet.write_text(
            f'[[device]]\nname = "board"\nconnect = "127.0.0.1:{free_port}"\nthreads = 1\ndevice_class = "one-core"\n'
            f'target = {{ kind = "llvm", mcpu = "{OTHER_CPU[platform.machine()]}" }}\n'
            '[[device]]\nname = "gone"\nconnect = "127.0.0.1:9"\n'
        )
        result = run_here(tmp_path / "out", "--trials", "12", "--fleet", str(fleet), "--json").json()
        assert {task["device_class"] for task in result["tasks"]} == {"one-core"}
        # A device that is not there does not keep the other from being used.
        [absent] = [notice["text"] for notice in result["notices"] if "gone" in notice["text"]]
        assert absent.endswith("Connection refused: the run begins without it, and takes it when it answers")
        with RecordReader(tmp_path / "out" / "records.db") as reader:
            assert {record.device_id for record in reader if record.device_id} == {"board"}
        # Of another kind than this machine: its network ran on the device before it was published.
        [network] = result["networks"]
        assert (network["checked_on"], network["unchecked"]) == ("board", "")
        assert network["max_rel_error"] < 1e-4
        assert min(network["tuned_secs"], network["untuned_secs"]) > 0
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0


@pytest.mark.parametrize(
    ("options", "network", "told"),
    [
        ((), "missing.py:net", "missing.py"),
        ((), "examples/networks.py:nothing", "nothing"),
        (("--method", "magic"), NETWORK, "magic"),
        (("--fleet", "nowhere.toml"), NETWORK, "nowhere.toml"),
        (("--time-budget", "soon"), NETWORK, "soon"),
        (("--address", "127.0.0.1:1"), NETWORK, "127.0.0.1:1"),
    ],
)
def test_bad_input_is_told_in_one_line_with_the_next_step(
    tmp_path: Path, options: tuple[str, ...], network: str, told: str
) -> None:
    # A process that is connected to a cluster does not ask for another one.
    start = run if "--address" in options else run_here
    done = start(tmp_path / "out", *options, network=network)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert told in errors[0]
    assert any(line.startswith("next: ") for line in done.stderr.splitlines())
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('target = "pentium-9000"', ("line 4", "pentium-9000")),
        ('connect = "127.0.0.1:9"', ("line 4", "board", "127.0.0.1:9")),
        ('conect = "local"', ("line 4", "conect")),
    ],
)
def test_a_wrong_fleet_file_is_told_with_its_line(tmp_path: Path, line: str, told: tuple[str, ...]) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(f'# a fleet\n[[device]]\nname = "board"\n{line}\n')
    done = run_here(tmp_path / "out", "--trials", "1", "--fleet", str(fleet))
    assert done.returncode == 2, done.stderr
    (error,) = (text for text in done.stderr.splitlines() if text.startswith("error: "))
    for part in ("fleet.toml", *told):
        assert part in error
    assert "Traceback" not in done.stderr


def test_a_database_of_a_newer_schema_is_told_before_anything_starts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    RecordStore(out / "records.db").close()
    with sqlite3.connect(out / "records.db") as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    done = run_here(out, "--trials", "1")
    assert done.returncode == 2
    assert "999" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_output_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    done = run_here(tmp_path / "out", "--trials", "1")
    assert done.returncode == 2
    assert "not a folder" in done.stderr


def test_the_plan_lists_tasks_and_measures_nothing(tmp_path: Path) -> None:
    plan = run_here(tmp_path / "out", "--trials", "9", "--dry-run", "--json").json()
    assert (plan["trial_limit"], plan["precision"], plan["errors"]) == (9, None, {})
    assert all(task["sketches"] >= 1 and task["weight"] >= 1 and task["trials"] == 0 for task in plan["tasks"])
    assert not (tmp_path / "out").exists()


def test_other_processes_environment_is_untouched() -> None:
    """Importing the package changes nothing of the process."""
    code = "import os; before = dict(os.environ); import fleet_tune; assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={**os.environ})
