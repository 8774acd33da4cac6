"""``fleet-tune dataset``: options, mistakes, what is printed; packing and refreshing with real sketches."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet_tune import api
from fleet_tune.base.config.fleet_file import default_fleet, load_fleet
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.domain import (
    Candidate,
    DeviceClass,
    Fingerprint,
    Limits,
    Record,
    Task,
)
from fleet_tune.base.records.datasets.dataset import load, save
from fleet_tune.base.records.datasets.dataset_codec import encode_value
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import Collected
from fleet_tune.base.shapes.shapes import parse_shapes
from fleet_tune.base.sketch import Sketch
from fleet_tune.base.task_data import Dataset
from fleet_tune.cli import main as cli
from fleet_tune.runs.fleet import fleet_probe
from fleet_tune.training import collection
from policies.space.sampling import sample
from tests.helpers.devices import make_fingerprint
from tests.helpers.records import failed, make_record, ok

COLLECTED = Collected("net", Path("out"), Path("out/dataset.ftd"), {"ok": 7, "build_error": 1}, 8, 65.0, False)


class RecordedOutcome:
    """Stands for :func:`fleet_tune.api.run_collection`: keeps the requests."""

    def __init__(self, result: Collected) -> None:
        self.result = result
        self.requests: list[RunRequest] = []

    def __call__(self, request: RunRequest, on_progress: Any) -> Collected:
        assert callable(on_progress)
        self.requests.append(request)
        return self.result


@pytest.fixture(scope="module")
def measured() -> tuple[Task, tuple[Sketch, ...], Fingerprint, list[Record]]:
    """A matrix product with its real sketches, and invented measurements of real candidates of them."""
    from devices.networks.tasks.extraction import workload_hash
    from tests.helpers.kernels import native_target
    from tests.helpers.programs import make_function, matmul, program_task

    product = matmul(12, 32, 48)
    task = program_task(product, native_target(), name="matmul 12x48", device_class="here-2", flop=36864.0)
    task = dataclasses.replace(
        task, workload=dataclasses.replace(task.workload, hash=workload_hash(make_function(product)))
    )
    sketches = collection.sketches_of([task])[0]
    rng = np.random.default_rng(0)
    records = []
    for sketch in sketches:
        for at, row in enumerate(sample(sketch, 3, rng).tolist()):
            candidate = Candidate(task.id, sketch.index, sketch.id, tuple(row))
            fine = ok(1e-3 * (at + 1), 1.1e-3 * (at + 1), verified=False)
            records.append(make_record(candidate, fine if at else failed(), f"{sketch.index}.{at}"))
    return task, sketches, make_fingerprint(task.device_class), records


def folder_of(path: Path, measured: Any, fingerprint: bool = True) -> Path:
    """An output folder as a run leaves it."""
    task, _, print_, records = measured
    with RecordStore(path / "records.db") as store:
        store.bind({"network": "some", "model": "toy"})
        if fingerprint:
            store.put_classes([encode_value(print_)])
        store.put_task(task)
        store.append(records)
    return path


def test_the_options_reach_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    collect = RecordedOutcome(COLLECTED)
    monkeypatch.setattr(api, "run_collection", collect)
    file = tmp_path / "f.toml"
    file.write_text('[[device]]\nname = "a"')
    arguments = (
        f"dataset collect n.py:net --per-task 9 --out o --seed 7 --time-budget 5m --fleet {file} --address ray:1"
        " --shapes n=1..8 --shapes-weights n=4:1"
    )
    assert cli.main([*arguments.split(), "--json"]) == 0
    request = RunRequest(
        network="n.py:net",
        out=Path("o").absolute(),
        fleet=load_fleet(file),
        limits=Limits(time_budget_secs=300.0, task_trials=9),
        method="random",
        seed=7,
        address="ray:1",
        collects=True,
        shapes=parse_shapes("n=1..8; n=4:1"),
    )
    assert collect.requests == [request]
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "schema": 1,
        "model": "net",
        "out": "out",
        "dataset": "out/dataset.ftd",
        "outcomes": {"ok": 7, "build_error": 1},
        "new_trials": 8,
        "elapsed_secs": 65.0,
        "interrupted": False,
    }
    assert "7 ok, 1 build error" in err


def test_an_interrupted_collection_tells_the_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = dataclasses.replace(COLLECTED, interrupted=True, signal_number=int(signal.SIGTERM))
    monkeypatch.setattr(api, "run_collection", RecordedOutcome(stopped))
    assert cli.main(["dataset", "collect", "n.py:net", "--per-task", "9", "--out", "o"]) == 143
    assert "Stopped early" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["dataset"], "Usage"),
        (["dataset", "colect"], "colect"),
        (["dataset", "collect", "net.onnx", "--out", "o"], "--per-task"),
        (["dataset", "collect", "net.onnx", "--per-task", "5"], "--out"),
        (["dataset", "collect", "net.onnx", "--per-task", "0", "--out", "o"], "trials of every task is a whole number"),
        (["dataset", "collect", "net.onnx", "--per-task", "5", "--out", "o", "--time-budget", "soon"], "no duration"),
        (["dataset", "collect", "net.onnx", "--per-task", "5", "--out", "o", "--fleet", "none.toml"], "fleet file"),
        (["dataset", "show", "none.ftd"], "cannot read the dataset none.ftd"),
        (["dataset", "show", "other.ftd"], "other.ftd is not a dataset"),
        (["dataset", "show", "newer.ftd"], "has format 7"),
        (["dataset", "show", "cut.ftd"], "is damaged"),
        (["dataset", "show", "."], "Is a directory"),
        (["dataset", "refresh", "other.ftd"], "other.ftd is not a dataset"),
        (["dataset", "pack", ".", "--out", "x.ftd"], "has no records.db"),
        (["dataset", "pack", "empty", "--out", "x.ftd"], "empty has no measured candidate"),
        (["dataset", "pack", "full", "--out", "no/x.ftd"], "cannot write the dataset no/x.ftd"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str],
    told: str,
    measured: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.ftd").write_bytes(b"something else")
    Path("newer.ftd").write_bytes(b"fleet-tune-dataset 7\n\x00")
    save(Dataset("toy", (), ()), Path("cut.ftd"))
    Path("cut.ftd").write_bytes(Path("cut.ftd").read_bytes()[:-1])
    task, sketches, print_, _ = measured
    folder_of(Path("empty"), (task, sketches, print_, []))
    folder_of(Path("full"), measured)
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert told.replace("no duration", "is not a duration") in out + err
    assert "Traceback" not in err
    assert not Path("x.ftd").exists()


def test_a_folder_is_packed_and_shown(
    measured: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # however long the path is
    task, sketches, print_, records = measured
    folder = folder_of(tmp_path / "full", measured)
    out = tmp_path / "some.ftd"
    assert cli.main(["dataset", "pack", str(folder), "--out", str(out), "--json"]) == 0
    stdout, stderr = capsys.readouterr()
    told = json.loads(stdout)
    (facts,) = told["tasks"]
    ran = len(sketches) * 2
    assert (told["model"], told["device_classes"], told["bytes"]) == ("toy", ["here-2"], out.stat().st_size)
    assert facts["outcomes"] == {"ok": ran, "build_error": len(sketches)}
    assert (facts["task_id"], facts["sketches"], facts["candidates"]) == (task.id, len(sketches), len(records))
    assert facts["best_secs"] == pytest.approx(2.1e-3)
    assert facts["best_gflops"] == pytest.approx(36864.0 / 2.1e-3 / 1e9)
    assert "matmul 12x48" in stderr
    read = load(out)
    assert read.fingerprints == (print_,)
    assert read[0].sketches == sketches
    assert [read[0].candidate(at) for at in range(len(read[0]))] == [record.candidate for record in records]
    assert cli.main(["dataset", "show", str(out)]) == 0
    assert "some CPU, 2 threads, TVM 0.27" in capsys.readouterr().out


def test_a_folder_of_devices_that_nobody_knows_is_refused(
    measured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, print_, _ = measured
    other = dataclasses.replace(print_, device_class=DeviceClass("other", "{}"))
    monkeypatch.setattr(fleet_probe, "probe_fleet", lambda _: {"local": other})
    folder = folder_of(tmp_path / "old", measured, fingerprint=False)
    assert cli.main(["dataset", "pack", str(folder), "--out", str(tmp_path / "x.ftd")]) == 2
    assert "measured on here-2" in capsys.readouterr().err
    # The fleet that measured it knows it.
    monkeypatch.setattr(fleet_probe, "probe_fleet", lambda _: {"local": print_})
    assert cli.main(["dataset", "pack", str(folder), "--out", str(tmp_path / "x.ftd")]) == 0


def test_a_dataset_is_refreshed(measured: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "full", measured)
    packed, _ = collection.pack(folder, default_fleet())
    (data,) = packed
    # As an earlier version described them: not at all, and one sketch that is made no more.
    blind = tuple(dataclasses.replace(each, statements=(), undescribed="unknown") for each in data.sketches)
    gone = (*blind[:-1], dataclasses.replace(blind[-1], trace_text="gone"))
    path = tmp_path / "old.ftd"
    save(Dataset("toy", packed.fingerprints, (dataclasses.replace(data, sketches=gone),)), path)
    assert cli.main(["dataset", "refresh", str(path), "--out", str(tmp_path / "new.ftd")]) == 0
    assert "skipped: 3 of a sketch" in capsys.readouterr().err
    (renewed,) = load(tmp_path / "new.ftd")
    assert renewed.sketches == data.sketches
    assert len(renewed) == len(data) - 3
    assert not load(path)[0].sketches[0].statements
    assert cli.main(["dataset", "refresh", str(path)]) == 0
    assert load(path)[0].sketches == data.sketches
