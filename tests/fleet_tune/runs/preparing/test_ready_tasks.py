"""A whole run of which one task is described long after the others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet_tune.base.errors import UserError
from fleet_tune.base.records.stores.reader import RecordReader

ROOT = Path(__file__).parents[4]
DEADLINE_SECS = 240.0

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def trials(out: Path) -> Counter[str]:
    """Trials of each task that is in the store."""
    try:
        with RecordReader(out / "records.db") as reader:
            return Counter(record.task_id for record in reader if record.revision == 0)
    except UserError:
        return Counter()


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started(file: Path, out: Path) -> subprocess.Popen[str]:
    network = f"{ROOT}/examples/networks.py:mlp"
    options = ("--out", str(out), "--trials", "40", "--json")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.held_describing", str(file), "tune", network, *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_is_ready_is_tuned_and_the_rest_joins_also_after_an_interruption(tmp_path: Path) -> None:
    file, out = tmp_path / "describe", tmp_path / "out"
    first = started(file, out)
    wait_until(lambda: trials(out), first)
    first.send_signal(signal.SIGINT)
    stdout, stderr = first.communicate(timeout=DEADLINE_SECS)
    assert first.returncode == 130, stderr
    assert "Traceback" not in stderr
    result = json.loads(stdout.splitlines()[-1])
    (late,) = (task["task_id"] for task in result["tasks"] if not task["described"])
    before = trials(out)
    assert not before[late]
    assert not (out / "models" / "tasks").exists()

    second = started(file, out)
    even_share = 40 // len(result["tasks"])
    wait_until(lambda: trials(out).total() == 40 - even_share, second)
    assert not trials(out)[late]
    file.touch()
    stdout, stderr = second.communicate(timeout=DEADLINE_SECS)
    assert second.returncode == 0, stderr
    result = json.loads(stdout.splitlines()[-1])
    assert all(task["described"] and task["trials"] for task in result["tasks"])
    assert trials(out).total() == 40
    assert trials(out)[late] == even_share
    (network,) = result["networks"]
    assert network["published"] in ("tuned", "untuned")
