"""The GPU benchmark: what it says without a GPU, and what it makes of its sides' figures."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.kernels import BENCHMARK, compare, fleet_file, skipped
from bench.processes import ROOT
from bench.result import BenchError
from fleet_tune.base.config.fleet_file import load_fleet

GPU = {"name": "a GPU", "target": {"kind": "cuda", "arch": "sm_90"}}


def sides(*, our_secs: float | None = 2e-5, peer_secs: float | None = 4e-5) -> dict[str, Any]:
    torch = {"best_secs": None, "sides": {"graph": 3e-5, "graph-channels-last": 1e-5}}
    return {
        "ours": {"kernels": {"product": {"best_secs": our_secs}, "3x3": {"best_secs": 2e-5}}, "trials": 9},
        "metaschedule": {"kernels": {"product": {"best_secs": peer_secs}}, "trials": 3},
        "pytorch": {"kernels": {"3x3": torch}},
    }


def test_it_says_so_and_skips_where_there_is_no_gpu() -> None:
    tvm_says = subprocess.run(
        [sys.executable, "-m", "bench.gpu.probe"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    if not json.loads(tvm_says.stdout.splitlines()[-1])["reason"]:
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "gpu", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["bench"], result["ours"], result["peer"], result["ratio"]) == ("gpu", None, None, None)
    assert "no NVIDIA GPU" in result["details"]["reason"]
    assert BENCHMARK.table(result).startswith("Skipped: ")


def test_the_ratio_is_over_the_kernels_that_both_have() -> None:
    result = compare(sides(), GPU, "float32")
    assert (result.ours, result.peer, result.ratio) == pytest.approx((0.02, 0.04, 2.0))
    assert result.details["ratio_to_pytorch"] == pytest.approx(0.5)
    assert result.details["sides"]["metaschedule"] == {"trials": 3}
    table = BENCHMARK.table(json.loads(result.to_json()))
    assert "| product | 0.0200 | 0.0400 | - |" in table
    assert "| 3x3 | 0.0200 | - | 0.0100 |" in table


def test_a_peer_without_a_figure_gives_no_ratio() -> None:
    failed = {"kernels": {}, "failed": "it has no CUDA compiler"}
    result = compare({**sides(), "metaschedule": failed}, GPU, "float16")
    assert result.ours == pytest.approx(0.02)
    assert (result.peer, result.ratio) == (None, None)
    assert result.details["sides"]["metaschedule"] == {"failed": "it has no CUDA compiler"}


def test_no_valid_trial_is_an_error() -> None:
    nothing = {**sides(), "ours": {"kernels": {"product": {"best_secs": None}}}}
    with pytest.raises(BenchError, match="without a valid trial"):
        compare(nothing, GPU, "float32")


def test_the_fleet_file_is_one_that_we_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet_file({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}))
    (device,) = load_fleet(path).devices
    assert device.target == {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}
    assert tomllib.loads(path.read_text())["device"][0]["name"] == "gpu"


def test_skipping_has_a_reason() -> None:
    assert json.loads(skipped("no GPU").to_json())["details"]["reason"] == "no GPU"
