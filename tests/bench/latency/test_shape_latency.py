"""The latency over a dynamic dimension: figures, table and picture by hand; the processes are real."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.latency import extent_arrays, shape_latency, shape_tunings
from bench.latency.shape_figures import MOST_EXTENTS, sampled_extents, weighted_mean
from bench.latency.shape_latency import BENCHMARK, alone_figures, asked_shapes, shape_result
from bench.latency.shape_picture import extent_pictures, side_lines
from bench.latency.shape_sides import Sampled, Side, time_sides
from bench.latency.shape_tunings import Tunings
from bench.machine import bench_env
from bench.networks.dynamic_extents import SHAPES
from bench.processes import run_json
from bench.result import BenchError
from devices.networks.compiled.network_folder import compile_network
from devices.networks.frameworks.array_file import read_arrays, write_arrays
from devices.networks.frameworks.order import OURS
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.helpers.compiling import CLASS

TINY = "bench/networks/dynamic_networks.py:tiny_layers"


@given(
    st.lists(st.tuples(st.integers(1, 512), st.floats(0.01, 9.0)), min_size=1, max_size=30, unique_by=lambda at: at[0])
)
def test_samples_have_both_ends_and_all_of_the_weight(weights: list[tuple[int, float]]) -> None:
    weights.sort()
    found = sampled_extents(tuple(weights))
    assert len(found) == min(MOST_EXTENTS, len(weights))
    extents = [extent for extent, _ in found]
    assert extents == sorted(extents)
    assert (extents[0], extents[-1]) == (weights[0][0], weights[-1][0])
    assert set(extents) <= {extent for extent, _ in weights}
    assert sum(weight for _, weight in found) == pytest.approx(sum(weight for _, weight in weights))


def test_a_weight_that_is_left_out_goes_to_the_nearest_by_ratio() -> None:
    assert dict(sampled_extents(((1, 1.0), (3, 5.0), (8, 1.0), (60, 1.0), (64, 1.0)), 3)) == {1: 1.0, 8: 6.0, 64: 2.0}


def _sampled(*weights: tuple[int, float]) -> Sampled:
    return Sampled("n", "n=1..8", weights, (), ((("n", 32)),), ("ONNX Runtime", "OpenVINO"))


def _side(secs: float) -> dict[str, Any]:
    return {"secs": {"median": secs, "min": secs, "max": secs, "count": 3}, "relative_error": 1e-7}


REFUSED = {"problem": "it takes no such thing"}


def _result(**details: Any) -> dict[str, Any]:
    """Ours takes 1 and 4 ms; ONNX Runtime 2 and 5; OpenVINO 3 ms and refuses eight rows."""
    found = {
        1: {OURS: _side(0.001), "ONNX Runtime": _side(0.002), "OpenVINO": _side(0.003), "fixed": _side(0.0009)},
        8: {OURS: _side(0.004), "ONNX Runtime": _side(0.005), "OpenVINO": REFUSED, "fixed": _side(0.006)},
    }
    load = {key: {"median": 0.02} for key in ("load_secs", "first_run_secs", "peak_mib", "network_mib")}
    told = {"tuning": {"elapsed_secs": 90.0}, "loading": {"extent": 8, "dynamic": load}, **details}
    result = shape_result("net.py:net", _sampled((1, 3.0), (8, 1.0)), found, told)
    body: dict[str, Any] = json.loads(result.to_json())
    return body


def test_the_mean_is_over_the_distribution_and_the_peer_runs_everywhere() -> None:
    result = _result()
    assert result["ours"] == pytest.approx(1.75)  # (3 * 1 + 4) / 4
    assert result["peer"] == pytest.approx(2.75)
    assert result["ratio"] == pytest.approx(2.75 / 1.75, rel=1e-4)
    details = result["details"]
    assert details["mean_secs"]["OpenVINO"] is None
    assert details["ratios"] == pytest.approx({"ONNX Runtime": 2.75 / 1.75, "fixed": 2.175 / 1.75}, rel=1e-4)
    assert [each["ratio"] for each in details["extents"]] == pytest.approx([2.0, 1.25])
    assert [each["fixed_ratio"] for each in details["extents"]] == pytest.approx([0.9, 1.5])
    assert weighted_mean(details["extents"], "OpenVINO") is None


def _tuned(elapsed_secs: float, folder: str = "") -> dict[str, Any]:
    return {"elapsed_secs": elapsed_secs, "trials": 9, "tuned_secs": 1.0, "untuned_secs": 2.0, "folder": folder}


def test_each_extent_is_tuned_alone_and_timed_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = {"dimension": "n", "shapes": "n=1..8", "weights": [[1, 3.0], [8, 1.0]], "arrays": ["a", "b"]}
    read |= {"input_shapes": [["n", 32]], "frameworks": ["ONNX Runtime"]}
    asked: list[list[str]] = []

    def run_json(arguments: list[str], **_options: Any) -> dict[str, Any]:
        asked.append(arguments)
        return read if "bench.latency.extent_arrays" in arguments else {"load_secs": 1.0, "peak_mib": 2.0}

    def take(_tunings: Tunings, name: str, shapes: str) -> dict[str, Any]:
        taken[name] = shapes
        return _tuned(10.0, f"/{name}")

    def sides_timed(_model: str, sides: list[Side], sampled: Sampled, _work: Path, **_options: Any) -> Any:
        timed.extend((side.name, side.extents, str(side.folder)) for side in sides if side.framework == OURS)
        return {each: {side.name: _side(each) for side in sides if each in side.extents} for each in sampled.extents}

    taken: dict[str, str] = {}
    timed: list[Any] = []
    monkeypatch.setattr(shape_latency, "run_json", run_json)
    monkeypatch.setattr(shape_latency, "time_sides", sides_timed)
    monkeypatch.setattr(Tunings, "take", take)
    result = shape_latency.run(TINY, "n=1..8", None, 60.0, 2, 0.1, tmp_path, 0, True)
    assert taken == {"dynamic": "n=1..8", "fixed-1": "n=1", "fixed-8": "n=8"}
    assert timed == [(OURS, (1, 8), "/dynamic"), ("fixed", (1,), "/fixed-1"), ("fixed", (8,), "/fixed-8")]
    assert asked[0][-2:] == ["--shapes", "n=1..8"]
    assert asked[1][-2:] == ["/dynamic", "b"]
    assert asked[2][-2:] == ["/fixed-8", "b"], "beside the network of the largest extent"
    assert result.details["loading"]["fixed"]["peak_mib"]["count"] == 3
    assert [each["fixed_ratio"] for each in result.details["extents"]] == [1.0, 1.0]
    taken.clear()
    shape_latency.run(TINY, None, None, 60.0, 2, 0.1, tmp_path, 0, False)
    assert list(taken) == ["dynamic"]


def test_without_frameworks_there_is_no_peer() -> None:
    alone = replace(_sampled((1, 1.0)), frameworks=())
    result = shape_result("net.py:net", alone, {1: {OURS: _side(0.5)}}, {})
    assert (result.ours, result.peer, result.ratio) == (500.0, None, None)


def test_one_tuning_is_compared_with_one_of_the_others() -> None:
    found = alone_figures(_tuned(90.0), {1: _tuned(50.0), 8: _tuned(70.0)})
    assert (found["elapsed_secs"], found["times_of_one"]) == (120.0, 1.5)


def test_the_table_has_each_extent_the_mean_and_what_is_refused() -> None:
    text = BENCHMARK.table(_result())
    assert "| 1 | 0.750 | 1 | 2 | 3 | 2.00 |" in text
    assert "| 8 | 0.250 | 4 | 5 | - | 1.25 |" in text
    assert "| mean | 1 | 1.75 | 2.75 | - | 1.57 |" in text
    assert "With n = 8, OpenVINO does not run: it takes no such thing" in text
    alone = BENCHMARK.table(_result(alone={"elapsed_secs": 640.0, "times_of_one": 1.1}))
    assert "| 8 | 0.250 | 4 | 5 | - | 1.25 | 6 | 1.50 |" in alone
    assert "| mean | 1 | 1.75 | 2.75 | - | 1.57 | 2.17 | 1.24 |" in alone
    assert "for each extent alone, in 640 s together" in alone


def test_the_picture_has_a_line_for_each_side(tmp_path: Path) -> None:
    result = _result()
    lines = side_lines(result["details"])
    assert lines[OURS] == ([1, 8], pytest.approx([1.0, 4.0]))
    assert lines["OpenVINO"] == ([1], pytest.approx([3.0]))
    assert lines["fixed"] == ([1, 8], pytest.approx([0.9, 6.0]))
    [(name, draw)] = extent_pictures(result, "shape-latency-net").items()
    assert name == "shape-latency-net-extents.svg"
    pytest.importorskip("matplotlib")
    draw(tmp_path / name)
    text = (tmp_path / name).read_text()
    assert all(text.count(f">{each}<") == 1 for each in (OURS, "OpenVINO", "fixed to each", "ms a run", "n"))


def test_options_come_before_what_lies_beside_the_network() -> None:
    assert asked_shapes(TINY, None, None) == SHAPES["tiny_layers"]
    assert asked_shapes(TINY, "n=1..4", "n=2:1") == "n=1..4; n=2:1"
    assert asked_shapes("my.py:net", None, None) is None
    with pytest.raises(BenchError, match="there are no bounds; give --shapes too"):
        asked_shapes(TINY, None, "n=2:1")


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Arguments of the tunings that were made; each leaves a folder."""
    made: list[list[str]] = []

    def run_json(arguments: list[str], **_options: Any) -> dict[str, Any]:
        folder = Path(arguments[3])
        assert not folder.exists()
        folder.mkdir()
        made.append(arguments)
        if len(made) == 1:
            raise BenchError("interrupted")
        return {"elapsed_secs": 1.0, "folder": str(folder)}

    monkeypatch.setattr(shape_tunings, "run_json", run_json)
    return made


def test_a_tuning_that_was_interrupted_begins_anew_and_one_that_has_ended_is_kept(
    tmp_path: Path, tuned: list[list[str]]
) -> None:
    tunings = Tunings(tmp_path / "out", "net.py:net", 60.0, 0)
    with pytest.raises(BenchError, match="interrupted"):
        tunings.take("dynamic", "n=1..8; n=1:3,8:1")
    figures = tunings.take("dynamic", "n=1..8; n=1:3,8:1")
    assert tunings.take("dynamic", "n=1..8; n=1:3,8:1") == figures
    assert len(tuned) == 2
    assert tuned[1][-4:] == ["--shapes", "n=1..8", "--shapes-weights", "n=1:3,8:1"]
    tunings.take("fixed-8", "n=8")
    assert tuned[2][-2:] == ["--shapes", "n=8"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, tuned: list[list[str]]) -> None:
    (tmp_path / "fixed-8").mkdir()
    with pytest.raises(BenchError, match="no folder of this benchmark: name another folder with --out"):
        Tunings(tmp_path, "net.py:net", 60.0, 0).take("fixed-8", "n=8")
    assert (tmp_path / "fixed-8").is_dir()
    tuned.append([])
    Tunings(tmp_path, "net.py:net", 60.0, 0).take("dynamic", "n=1..8")
    with pytest.raises(BenchError, match="of another network, budget or seed"):
        Tunings(tmp_path, "net.py:net", 90.0, 0).take("dynamic", "n=1..8")


Sample = Callable[[str], Sampled]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Takes the inputs and outputs of the tiny network with some shapes."""

    def take(shapes: str) -> Sampled:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(extent_arrays, "die_with_parent", lambda: None)
            arguments = [TINY, str(tmp_path_factory.mktemp("arrays")), "--shapes", shapes]
            done = CliRunner().invoke(extent_arrays.main, arguments)
        if done.exit_code:
            raise BenchError(done.output)
        return Sampled.read(json.loads(done.output.splitlines()[-1]))

    return take


@pytest.fixture(scope="module")
def sampled(sample: Sample) -> Sampled:
    return sample("n=1..4; n=1:3,3:1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network compiled without tuning."""
    lowered = import_network(load_network(TINY, shapes=parse_shapes("n=1..4; n=1:3,3:1")), CLASS)
    return compile_network(lowered, {}, tmp_path_factory.mktemp("compiled"))


def test_samples_are_the_networks_own_numbers(sampled: Sampled, sample: Sample) -> None:
    assert (sampled.dimension, sampled.shapes, sampled.extents) == ("n", "n=1..4; n=1:3,3:1", (1, 3))
    assert sampled.input_shapes == (("n", 32),)
    assert {"PyTorch", "torch.compile", "ONNX Runtime"} <= set(sampled.frameworks)
    (inputs,), (expected,) = read_arrays(sampled.arrays[1])
    assert (inputs.shape, expected.shape) == ((3, 32), (3, 16))
    with pytest.raises(BenchError, match=r"has no dynamic dimension: python -m bench network-latency takes it"):
        sample("n=3")
    with pytest.raises(BenchError, match="has no dynamic dimension 'k'"):
        sample("n=1..4, k=3")


@pytest.mark.timeout(300)
def test_all_sides_are_checked_and_timed_and_who_refuses_is_told(
    sampled: Sampled, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").write_text("raise ImportError('made for another machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    sides = [
        Side(OURS, OURS, (1, 3), folder),
        Side("fixed", OURS, (3,), folder),
        *(Side(name, name, (1, 3)) for name in ("PyTorch", "ONNX Runtime", "OpenVINO")),
    ]
    found = time_sides(TINY, sides, sampled, tmp_path, rounds=2, block_secs=0.01)
    assert list(found) == [1, 3]
    assert set(found[3]) - set(found[1]) == {"fixed"}
    for extent in found.values():
        assert "made for another machine" in extent.pop("OpenVINO")["problem"]
        for side in extent.values():
            assert side["relative_error"] < 1e-5
            assert side["secs"]["count"] >= 10, "two blocks of five runs"
            assert 0 < side["secs"]["min"] <= side["secs"]["median"] <= side["secs"]["max"]


def test_a_network_of_ours_that_is_wrong_has_no_time(sampled: Sampled, folder: Path, tmp_path: Path) -> None:
    inputs, expected = read_arrays(sampled.arrays[1])
    file = write_arrays(tmp_path / "other.npz", inputs, [1.1 * np.abs(expected[0]) + 1])
    wrong = replace(sampled, arrays=(sampled.arrays[0], file))
    with pytest.raises(BenchError, match=r"with the extent 3: it differs from what is expected by"):
        time_sides(TINY, [Side(OURS, OURS, (1, 3), folder)], wrong, tmp_path, rounds=1, block_secs=0.01)
    found = time_sides(TINY, [Side("PyTorch", "PyTorch", (1, 3))], wrong, tmp_path, rounds=1, block_secs=0.01)
    assert "it differs" in found[3]["PyTorch"]["problem"]
    assert "secs" in found[1]["PyTorch"]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_loading_takes_memory_for_the_weights(sampled: Sampled, folder: Path, tmp_path: Path) -> None:
    arguments = ["-m", "bench.latency.load_process", str(folder), sampled.arrays[0]]
    figures = run_json(arguments, env=bench_env(2), timeout_secs=120)
    assert 0 < figures["network_mib"] < figures["peak_mib"]
    assert min(figures["load_secs"], figures["first_run_secs"]) > 0
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged" / "network.so").unlink()
    with pytest.raises(BenchError, match="exit code"):
        run_json([*arguments[:2], str(tmp_path / "damaged"), sampled.arrays[0]], env=bench_env(2), timeout_secs=120)
