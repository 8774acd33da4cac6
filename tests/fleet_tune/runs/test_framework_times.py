"""``fleet-tune frameworks``: a compiled network beside the frameworks that are installed. The processes are real."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch

from devices.networks.compiled.network_folder import compile_network
from devices.networks.frameworks import runners
from devices.networks.frontend import load_network
from devices.networks.network import Array, Network
from devices.networks.tasks.lowering import import_network
from fleet_tune.base.errors import NetworkError, RequestError
from fleet_tune.base.shapes.shapes import parse_shapes
from fleet_tune.cli.main import main
from fleet_tune.report.frameworks import extent_rows, extent_series, extent_titles, problem_lines
from fleet_tune.report.html.page import render_report
from fleet_tune.report.words import NONE
from fleet_tune.runs.framework_times import (
    ExtentTimes,
    FrameworkTime,
    FrameworkTimes,
    read_times,
    time_frameworks,
)
from tests.helpers.compiling import CLASS, trace
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task

NETWORK = """
import torch

print("what a user's file prints is no answer")

def square():
    torch.manual_seed(0)
    return torch.nn.Linear(64, 64, bias=False), (torch.rand(64, 64),)
"""

DYNAMIC = """
import torch

def rows():
    torch.manual_seed(0)
    n, k = torch.export.Dim("n", min=2, max=64), torch.export.Dim("k", min=2, max=64)
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
    return module, (torch.rand(5, 4, 16),), ({0: n, 1: k},)
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("network") / "net.py"
    file.write_text(NETWORK)
    return f"{file}:square"


@pytest.fixture(scope="module")
def folder(spec: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled network."""
    lowered = import_network(load_network(spec), CLASS)
    out = tmp_path_factory.mktemp("compiled")
    return compile_network(lowered, {task.id: trace(task) for task in lowered.tasks}, out)


@pytest.mark.timeout(300)
def test_all_frameworks_take_turns_and_the_times_are_kept(
    spec: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runners._OF_TORCH, "absent", ("no_such_package", runners.eager))  # type: ignore[index]
    assert main(["frameworks", spec, str(folder), "--rounds", "1", "--json"]) == 0
    told = capsys.readouterr()
    body = json.loads(told.out.splitlines()[-1])
    names = [each["name"] for each in body["times"]]
    assert names[:4] == ["fleet-tune", "PyTorch", "torch.compile", "ONNX Runtime"]
    assert "absent" not in names
    by_name = {each["name"]: each for each in body["times"]}
    for name in ("fleet-tune", "PyTorch", "ONNX Runtime"):
        each = by_name[name]
        assert each["problem"] == ""
        assert 0 < each["low_secs"] <= each["secs"] <= each["high_secs"]
        assert each["relative_error"] < 1e-5
    assert by_name["PyTorch"]["relative_error"] == 0.0
    assert body["ratios"]["PyTorch"] == pytest.approx(by_name["PyTorch"]["secs"] / by_name["fleet-tune"]["secs"])
    assert "ONNX Runtime" in told.err
    kept = read_times(folder)
    assert kept is not None
    assert [each.name for each in kept.times] == names


def test_a_framework_that_cannot_run_the_network_says_why(spec: str, folder: Path, tmp_path: Path) -> None:
    """It is found installed here, and its process cannot import it."""
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").write_text("raise ImportError('made for another machine')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        patch.syspath_prepend(str(tmp_path))
        for name in [name for name in sys.modules if name.partition(".")[0] == "openvino"]:
            patch.delitem(sys.modules, name)
        patch.setattr(runners, "_OF_TORCH", {})  # the others are asked in the test above
        patch.setattr(runners, "_OF_ANY", {"OpenVINO": runners._OF_ANY["OpenVINO"]})
        found = time_frameworks(spec, folder, rounds=1)
    [openvino] = [each for each in found.times if each.name == "OpenVINO"]
    assert openvino.secs is None
    assert "made for another machine" in openvino.problem
    assert "OpenVINO" not in found.ratios


def test_an_onnx_file_runs_in_what_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "square.onnx"
    torch.onnx.export(torch.nn.Linear(64, 64, bias=False), (torch.rand(64, 64),), str(file), dynamo=False)
    lowered = import_network(load_network(file), CLASS)
    compile_network(lowered, {task.id: trace(task) for task in lowered.tasks}, tmp_path / "out")
    found = time_frameworks(str(file), tmp_path / "out", rounds=1)
    assert [each.name for each in found.times][:2] == ["fleet-tune", "ONNX Runtime"]
    assert "PyTorch" not in found.ratios
    assert found.times[0].relative_error is not None
    assert found.times[0].relative_error < 1e-5


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_dynamic_dimension_is_timed_at_several_extents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bounds, and the extent of the dimension that is fixed, are those of the folder."""
    monkeypatch.setattr(runners, "_OF_TORCH", {"PyTorch": runners._OF_TORCH["PyTorch"]})  # a compilation takes longer
    file = tmp_path / "net.py"
    file.write_text(DYNAMIC)
    spec = f"{file}:rows"
    network = load_network(spec, shapes=parse_shapes("k=3, n=2..8; n=4:1"))
    lowered = import_network(network, CLASS)
    out = compile_network(lowered, {}, tmp_path / "out", {"bounds": str(network.bounds)})
    assert main(["frameworks", spec, str(out), "--rounds", "1", "--json"]) == 0
    told = capsys.readouterr()
    body = json.loads(told.out.splitlines()[-1])
    names = [each["name"] for each in body["times"]]
    assert body["extent"] == "n = 4"
    assert [each["extent"] for each in body["others"]] == ["n = 2", "n = 8"]
    for times in (body["times"], *(each["times"] for each in body["others"])):
        assert [each["name"] for each in times] == names
        for each in times:
            assert each["problem"] == "", each
            assert each["relative_error"] < 1e-5
    kept = read_times(out)
    assert kept is not None
    assert [row[0] for row in extent_rows(kept)] == ["2", "4", "8"]
    assert extent_titles(kept) == ("n", *names)
    assert "rows with n = 4" in told.err
    plain, said = Network.framework_outputs, list[str]()

    def refusing(network: Network) -> tuple[Array, ...]:
        if network.extents["n"] == 8:
            raise NetworkError("8 rows are too many", "give others")
        return plain(network)

    with monkeypatch.context() as patched:
        patched.setattr(Network, "framework_outputs", refusing)
        partly = time_frameworks(spec, out, rounds=1, say=said.append)
    assert [each.extent for each in partly.others] == ["n = 2"]
    assert "not timed with n = 8: the framework refuses these inputs (8 rows are too many)" in said
    with pytest.raises(RequestError, match=r"does not run here: .*compiled for n=2"):
        time_frameworks(spec, out, rounds=1, shapes=parse_shapes("k=3, n=2..16"))


def test_a_framework_that_fails_at_one_extent_is_named() -> None:
    right, wrong = FrameworkTime("X", 2e-3, 1.9e-3, 2.1e-3, 0.0), FrameworkTime("X", None, problem="too large")
    ours = FrameworkTime("fleet-tune", 1e-3, 1e-3, 1e-3, 0.0)
    others = (ExtentTimes("n = 8", (ours, wrong)), ExtentTimes("n = 16", (ours, right)))
    found = FrameworkTimes("net", "a CPU", 2, 1.7e9, "", (ours, right), "n = 2", others)
    assert problem_lines(found) == ["X does not run with n = 8: too large"]
    assert extent_rows(found) == [
        ("2", "1.000 ms", "2.000 ms (2.00×)"), ("8", "1.000 ms", NONE), ("16", "1.000 ms", "2.000 ms (2.00×)"),
    ]  # fmt: skip
    assert extent_series(found) == {
        "n": {"fleet-tune": [(2, 1e-3), (8, 1e-3), (16, 1e-3)], "X": [(2, 2e-3), (16, 2e-3)]}
    }


def test_a_curve_has_the_extents_at_which_the_others_are_typical() -> None:
    def at(extents: str, secs: float) -> ExtentTimes:
        return ExtentTimes(extents, (FrameworkTime("fleet-tune", secs, secs, secs, 0.0),))

    others = tuple(at(f"n = {n}, k = {k}", n + k / 10) for n, k in [(1, 4), (8, 4), (2, 1), (1, 1), (8, 9)])
    found = FrameworkTimes("net", "a CPU", 2, 1.7e9, "", at("", 2.4).times, "n = 2, k = 4", others)
    assert extent_series(found) == {
        "n": {"fleet-tune": [(1, 1.4), (2, 2.4), (8, 8.4)]},
        "k": {"fleet-tune": [(1, 2.1), (4, 2.4)]},
    }


def test_what_cannot_be_timed_is_refused(spec: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no compiled network"):
        time_frameworks(spec, tmp_path, rounds=1)
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (broken / file.name).write_bytes(file.read_bytes())
    (broken / "network.so").write_bytes(b"no library")
    with pytest.raises(RequestError, match="does not run here"):
        time_frameworks(spec, broken, rounds=1)


def test_the_report_shows_them(tmp_path: Path) -> None:
    from fleet_tune.base.records.stores.store import RecordStore

    task = make_task("a")
    with RecordStore(tmp_path / "records.db") as store:
        store.put_task(task)
        store.append([make_record(make_candidate(task, 1), ok(1e-3))])
    assert "fleet-tune frameworks NETWORK FOLDER" in render_report(tmp_path)
    times = (FrameworkTime("fleet-tune", 1e-3, 0.9e-3, 1.1e-3, 1e-7), FrameworkTime("X", 2e-3, 1.9e-3, 2.1e-3, 0.0))
    (tmp_path / "manifest.json").write_text("{}")
    digest = hashlib.blake2b(b"{}", digest_size=16).hexdigest()
    failed = FrameworkTime("Y", None, problem="no such operator")
    others = (ExtentTimes("n = 8", (*times[:1], FrameworkTime("X", None, problem="no such extent"), failed)),)
    found = FrameworkTimes("net", "a CPU", 2, 1.7e9, digest, (*times, failed), "n = 2", others)
    (tmp_path / "frameworks.json").write_text(json.dumps({"schema": 1, **dataclasses.asdict(found)}))
    page = render_report(tmp_path)
    told_of = ("2.00× as fast", "does not run: no such operator", "a CPU with 2 threads, on 2023-11-1")
    for told in (*told_of, ", with n = 2", "2.000 ms (2.00×)", "X does not run with n = 8: no such extent."):
        assert told in page
    assert "fleet-tune, n = 8: 1.000 ms" in page  # in the chart
    (tmp_path / "manifest.json").write_text('{"of": "another network"}')
    assert "fleet-tune frameworks NETWORK FOLDER" in render_report(tmp_path)
    (tmp_path / "frameworks.json").write_text("{}")
    assert "fleet-tune frameworks NETWORK FOLDER" in render_report(tmp_path)
