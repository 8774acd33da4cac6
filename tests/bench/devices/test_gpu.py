"""The GPU benchmark: what it says without a GPU, and what it makes of its sides' figures."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench import options
from bench.devices.gpu import BENCHMARK, _ours, compare, fleet_file, skipped
from bench.processes import ROOT
from bench.result import BenchError
from fleet_tune.base.config.fleet_file import load_fleet
from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.records import named_record

GPU = {"name": "a GPU", "target": {"kind": "cuda", "arch": "sm_90"}}


def figures(
    peer_secs: float | None = 4e-5, our_secs: float | None = 2e-5
) -> dict[str, dict[str, dict[str, float | None]]]:
    torch: dict[str, float | None] = {"best_secs": 1e-5}
    sides = {"ours": {"best_secs": our_secs}, "metaschedule": {"best_secs": peer_secs}, "pytorch": torch}
    return {"matmul_relu": sides, "conv2d_nhwc": sides}


def test_it_says_so_and_skips_where_there_is_no_gpu() -> None:
    tvm_says = subprocess.run(
        [sys.executable, "-m", "bench.devices.gpu_probe"],
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


def test_the_ratio_is_metaschedules_time_over_ours() -> None:
    result = compare(figures(), GPU)
    assert (result.ours, result.peer, result.ratio) == pytest.approx((0.02, 0.04, 2.0))
    assert result.details["ratio_to_pytorch"] == pytest.approx(0.5)
    assert "| `conv2d_nhwc` | 0.0200 | 0.0400 | 0.0100 |" in BENCHMARK.table(json.loads(result.to_json()))


def test_a_peer_without_a_figure_gives_no_ratio() -> None:
    result = compare(figures(peer_secs=None), GPU)
    assert (result.peer, result.ratio) == (None, None)
    assert "| 0.0200 | - | 0.0100 |" in BENCHMARK.table(json.loads(result.to_json()))


def test_kernels_count_where_their_network_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: list[str], **_: object) -> None:
        out = Path(args[args.index("--budget-secs") - 1])
        out.mkdir()
        with RecordStore(out / "records.db") as store:
            store.append([named_record("one", 2e-5), named_record("two", 3e-5), named_record("failed", None)])
        raise BenchError("the network was not compiled")

    monkeypatch.setattr("bench.devices.gpu.run_json", fail)
    ours = _ours("matmul_relu", 1.0, GPU["target"])  # type: ignore[arg-type]
    assert ours["best_secs"] == 2e-5
    assert ours["reason"] == "the network was not compiled"


def test_no_valid_trial_is_an_error() -> None:
    with pytest.raises(BenchError, match="without a valid trial"):
        compare(figures(our_secs=None), GPU)


def test_the_fleet_file_is_one_that_we_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet_file({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}))
    (device,) = load_fleet(path).devices
    assert device.target == {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}
    assert tomllib.loads(path.read_text())["device"][0]["name"] == "gpu"


def test_skipping_has_a_reason() -> None:
    assert json.loads(skipped("no GPU").to_json())["details"]["reason"] == "no GPU"
    assert set(options.WORKLOADS) == {"matmul_relu", "conv2d_nhwc"}
