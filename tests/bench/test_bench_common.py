"""The benchmarks' own machinery: figures, tables, and children that cannot outlive them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from bench import search_time
from bench.machine import bench_env
from bench.processes import Conversation, last_json, run_json
from bench.result import BenchError, BenchResult, interleave, spread
from bench.devices.gpu import skipped
from bench.networks.network_latency import latency_result
from bench.tables import replace_table, write_tables
from bench.networks.trial_rate import workload_figures


def _gone(pid: int, deadline_secs: float = 10.0) -> bool:
    end = time.monotonic() + deadline_secs
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
    return False


def test_spread_of_an_even_number_of_samples() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0]) == {"median": 2.5, "min": 1.0, "max": 4.0, "count": 4}


def test_spread_refuses_no_samples() -> None:
    with pytest.raises(BenchError, match="no samples"):
        spread([])


def test_interleave_takes_turns() -> None:
    order: list[str] = []

    def side(name: str) -> list[float]:
        order.append(name)
        return [float(len(order))]

    samples = interleave(3, {"a": lambda: side("a"), "b": lambda: side("b")})
    assert order == ["a", "b"] * 3
    assert samples == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_result_has_the_documented_keys_in_order() -> None:
    result = json.loads(BenchResult("x", 1.234567, None, None, "s", {"n": 3}).to_json())
    assert list(result) == ["bench", "ours", "peer", "ratio", "unit", "details"]
    assert result["ours"] == 1.2346
    assert result["details"]["n"] == 3
    assert result["details"]["machine"]["versions"]["apache-tvm"]


def test_latency_ratio_is_above_one_when_we_are_faster() -> None:
    medians = {"ours": 0.010, "eager": 0.030, "compile": 0.020, "ort": 0.005}
    result = latency_result("m", medians, {}, {})
    assert (result.ours, result.peer, result.unit) == (10.0, 30.0, "ms")
    assert result.ratio == pytest.approx(3.0)
    assert result.details["ratios"] == pytest.approx({"eager": 3.0, "compile": 2.0, "ort": 0.5})


def test_trial_rate_compares_medians_and_refuses_empty_sides() -> None:
    ours = [{"valid": 9, "tasks": 1, "valid_per_minute": rate} for rate in (100.0, 300.0, 200.0)]
    peer = [{"valid": 9, "valid_per_minute": rate} for rate in (40.0, 50.0, 10.0)]
    assert workload_figures(ours, peer)["ratio"] == pytest.approx(5.0)
    with pytest.raises(BenchError, match="MetaSchedule measured no valid trial"):
        workload_figures(ours, [{"valid": 0, "valid_per_minute": 0.0}])
    with pytest.raises(BenchError, match="tasks"):
        workload_figures([{**ours[0], "tasks": 2}], peer)


def test_only_the_marked_table_is_replaced() -> None:
    text = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\n<!-- bench:y -->\nkept\n<!-- /bench:y -->\n"
    new = replace_table(text, "x", "| new |\n")
    assert new == text.replace("old", "| new |")
    assert replace_table(new, "x", "| new |\n") == new
    with pytest.raises(BenchError, match="bench:z"):
        replace_table(text, "z", "")


def test_benchmark_page_takes_a_result_of_every_benchmark(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text((Path(__file__).parents[2] / "docs/benchmarks.md").read_text())
    times = {"median": 0.0125, "min": 0.012, "max": 0.02, "count": 3}
    rates = {"median": 400.0, "min": 390.0, "max": 410.0, "count": 3}
    workload = {"ours": rates, "peer": rates, "ratio": 1.0, "our_runs": [{"valid_per_minute_after_first": 420.0}]}
    results = {
        "trial-rate": BenchResult("trial-rate", 400, 400, 1, "1/min", {"workloads": {"matmul_relu": workload}}),
        "network-latency": latency_result(
            "net",
            {"ours": 0.0125, "eager": 0.025, "compile": 0.02, "ort": 0.01},
            {"budget_secs": 300.0},
            {side: {"secs": times, "relative_error": 1e-6} for side in ("ours", "eager", "compile", "ort")},
        ),
        "first-record": BenchResult(
            "first-record", 9, None, None, "s", {"models": {"net": {"first_record_secs": times, "stop_secs": times}}}
        ),
    }
    results |= _offline_results() | {"gpu": skipped("no GPU")}
    shown = {name: json.loads(result.to_json()) for name, result in results.items()}
    write_tables(page, shown, dict.fromkeys(shown, "python -m bench"))
    text = page.read_text()
    assert "Not run yet" not in text
    assert "| `matmul_relu` | 400 (390 to 410) | 420 | 400 (390 to 410) | 1.0 |" in text
    assert "| `conv` | 0.900 | 0.990 | 1.000 | 0.900 | 0.800 |" in text
    assert "| as many of each | 2,000,000 | 1,000,000 | 1,000,000 | 900,000 |" in text
    assert "| trials to within 5% of the best (candidates there) | `fleet` | `random`, 3 seeds |" in text
    assert "| `conv` (3) | 12 (10 to 14) | 120 (110 to 140) |" in text
    assert "| ei | 12 | 30 |" in text
    assert "| `conv`, 64 records | 50 (50 to 50) | 5000 (5000 to 5000) | 100 | 70 | 700 |" in text
    assert "| PyTorch eager | 12.50 (12.00 to 20.00) | 2.00 | 1.0e-06 |" in text


def _offline_results() -> dict[str, BenchResult]:
    scores = {"analyzer": 0.9, "calibrated": 0.99, "with-model": 1.0, "metaschedule": 0.9, "random": 0.8}
    speed = {"analyzer": 2e6, "calibrated": 1e6, "analyzer_population": 1e6, "calibrated_population": 9e5}
    draft = {
        "best_1": scores,
        "best_1_spread": {name: {"min": score} for name, score in scores.items()},
        "best_1_by_task": {"conv": scores},
        "speed": speed,
        "speed_by_task": {"conv": speed, "undescribed": {}},
        "candidates_a_call": 16384,
        "share": 8,
        "calibration": 64,
    }
    few, many = ({"q1": 10.0, "median": 12.0, "q3": 14.0}, {"q1": 110.0, "median": 120.0, "q3": 140.0})
    replayed = {
        "methods": ["random", "fleet"],
        "trials": {"random": {"conv": many}, "fleet": {"conv": few}, "fleet - ei": {"conv": few}},
        "overall": {"random": 120.0, "fleet": 12.0, "fleet - ei": 30.0},
        "network": {"fleet, ucb": many},
        "seeds": {"random": 3, "fleet": 20},
        "dataset": {"near_best": {"conv": 3}},
    }
    pair = search_time.pair_figures(
        [{"secs": 0.05, "cpu_secs": 0.05, "candidates": 64, "observe_secs": 0.001, "train_secs": 0.07}],
        [{"secs": 5.0, "cpu_secs": 5.0, "candidates": 64, "train_secs": 0.7, "scored_by_model": True}],
    )
    searched = {"pairs": [{"task": "conv", "records": 64, **pair}]}
    return {
        "draft": BenchResult("draft", 0.99, 0.9, 1.1, "Best-1", draft),
        "replay": BenchResult("replay", 12, None, None, "trials", replayed),
        "search-time": BenchResult("search-time", 0.05, 5, 100, "s", searched),
    }


def test_child_result_is_its_last_line() -> None:
    code = "print('a log line'); print('{\"n\": 2}')"
    assert run_json(["-c", code], env=bench_env(1), timeout_secs=60) == {"n": 2}
    with pytest.raises(BenchError, match="no JSON"):
        last_json("words\n", "child")


def test_failing_child_is_reported_with_its_error() -> None:
    with pytest.raises(BenchError, match=r"exit code 1: [\s\S]*ZeroDivisionError"):
        run_json(["-c", "1/0"], env=bench_env(1), timeout_secs=60)


def test_grandchildren_end_with_a_child_that_takes_too_long(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(BenchError, match="no result within"):
        run_json(["-c", code], env=bench_env(1), timeout_secs=3)
    assert _gone(int(pid_file.read_text()))


def test_conversation_answers_and_ends_with_its_block() -> None:
    code = (
        "import json, os, sys\n"
        "print(json.dumps({'pid': os.getpid()}), flush=True)\n"
        "for line in sys.stdin: print(json.dumps({'twice': 2 * int(line)}), flush=True)\n"
    )
    with Conversation(["-c", code], env=bench_env(1)) as child:
        pid = int(child.ready["pid"])
        assert child.ask("21") == {"twice": 42}
        assert os.path.exists(f"/proc/{pid}")
        with pytest.raises(BenchError, match="invalid literal"):
            child.ask("no number")
    assert _gone(pid)


def test_conversation_with_a_silent_child_ends_at_the_deadline() -> None:
    with pytest.raises(BenchError, match="silent"):
        Conversation(["-c", "import time; time.sleep(600)"], env=bench_env(1), start_timeout_secs=1.0)
