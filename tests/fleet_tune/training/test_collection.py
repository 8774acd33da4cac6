"""Real collections: measured on this machine, resumed, interrupted, and taken for a device by a whole run."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet_tune.base.domain import Outcome
from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.records.stores.reader import RecordReader
from tests.helpers.commands import fleet_tune_here

ROOT = Path(__file__).parents[3]
NETWORK = f"{ROOT}/examples/networks.py:mlp"
DEADLINE_SECS = 180.0

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fleet_tune", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str) -> dict[str, Any]:
    """The JSON of a command that succeeds, in this process."""
    return fleet_tune_here(*arguments, "--json").json()


@pytest.fixture(scope="module")
def collected(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three measured candidates of each of the three tasks, collected in two runs."""
    del ray_cluster  # which the commands use
    out = tmp_path_factory.mktemp("collected")
    first = run("dataset", "collect", NETWORK, "--per-task", "2", "--out", str(out))
    assert (first["new_trials"], sum(first["outcomes"].values())) == (6, 6)
    assert load(out / "dataset.ftd").candidates == 6
    second = run("dataset", "collect", NETWORK, "--per-task", "3", "--out", str(out))
    assert (second["new_trials"], sum(second["outcomes"].values())) == (3, 9)
    return out


def test_every_task_has_its_candidates_measured_to_their_end(collected: Path) -> None:
    dataset = load(collected / "dataset.ftd")
    assert [len(data) for data in dataset] == [3, 3, 3]
    with RecordReader(collected / "records.db") as reader:
        records = {record.candidate.id: record.measurement for record in reader}
        assert reader.counts() == {Outcome.OK: 9}
    assert len(records) == 9
    for data in dataset:
        assert data.task.workload.module
        for at in range(len(data)):
            recorded = records[data.candidate(at).id]
            assert recorded.stopped in ("converged", "maximum")
            assert len(data.batches(at)) >= 3
            assert data.cost_secs[at] == pytest.approx(recorded.cost_secs, rel=1e-6)


def test_packing_the_folder_gives_the_same_dataset(collected: Path, tmp_path: Path) -> None:
    run("dataset", "pack", str(collected), "--out", str(tmp_path / "again.ftd"))
    assert (tmp_path / "again.ftd").read_bytes() == (collected / "dataset.ftd").read_bytes()


def test_a_run_on_the_dataset_measures_what_it_holds(collected: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(f'[[device]]\nname = "recorded"\nconnect = "recorded:{collected / "dataset.ftd"}"\n')
    out = tmp_path / "out"
    result = run("tune", NETWORK, "--fleet", str(fleet), "--out", str(out), "--time-budget", "2m")
    # Every candidate of the dataset, and nothing else: then the space is exhausted.
    assert result["outcomes"] == {"ok": 9}
    assert result["networks"] == []
    batches = {data.candidate(at).id: data.batches(at) for data in load(collected / "dataset.ftd") for at in range(3)}
    with RecordReader(out / "records.db") as reader:
        records = list(reader)
    assert {record.candidate.id for record in records} == batches.keys()
    for record in records:
        assert record.device_id == "recorded"
        measured, recorded = record.measurement.run_secs, batches[record.candidate.id]
        if record.revision or record.measurement.comparison:  # runs in turn: a few in each, each from the start
            assert measured
            assert set(measured) <= set(recorded)
        else:  # fewer where the tuning gave it up; from the start again where it asks for more than were recorded
            assert measured == tuple(itertools.islice(itertools.cycle(recorded), len(measured)))
    for task in result["tasks"]:
        # Of each candidate what was said last; the best is chosen by what met what, not by the lowest of noisy costs.
        last = {r.candidate.id: r for r in records if r.task_id == task["task_id"] and r.measurement.verified}
        best = min(last.values(), key=lambda record: record.measurement.rank_secs)
        assert task["best_secs"] == best.measurement.rank_secs


def test_an_interrupted_collection_leaves_a_dataset_and_goes_on(tmp_path: Path) -> None:
    process = started("dataset", "collect", NETWORK, "--per-task", "100000", "--out", str(tmp_path))
    try:
        deadline = time.monotonic() + DEADLINE_SECS
        while time.monotonic() < deadline and process.poll() is None:
            # While it is being created it is no store yet.
            with contextlib.suppress(RecordStoreError), RecordReader(tmp_path / "records.db") as reader:
                if reader.last_seq() >= 10:
                    break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=DEADLINE_SECS)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "Stopped early" in stdout
    dataset = load(tmp_path / "dataset.ftd")
    with RecordReader(tmp_path / "records.db") as reader:
        assert dataset.candidates == reader.last_seq() >= 10
    assert np.isfinite([data.best_secs for data in dataset]).all()
