"""Children of the benchmarks: their answers, and that none outlives its benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.machine import bench_env
from bench.processes import ROOT, Conversation, last_json, run_json
from bench.result import BenchError
from tests.helpers.waiting import wait_until


def _gone(pid: int, deadline_secs: float = 10.0) -> bool:
    end = time.monotonic() + deadline_secs
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
    return False


def test_child_result_is_its_last_line() -> None:
    code = "print('a log line'); print('{\"n\": 2}')"
    assert run_json(["-c", code], env=bench_env(1), timeout_secs=60) == {"n": 2}
    with pytest.raises(BenchError, match="not JSON"):
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


def test_a_child_ends_with_a_benchmark_that_is_killed_before_it_has_loaded_anything(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    code = (
        "from bench.machine import bench_env\nfrom bench.processes import run_json\n"
        f"run_json(['-c', {child!r}], env=bench_env(1), timeout_secs=600)"
    )
    benchmark = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the child is there", 60)
    finally:
        benchmark.kill()
        benchmark.wait()
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
