"""The wall clock is read for time stamps alone: a clock that jumps changes nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
STAMPS = {
    "actors/processes/recorder.py end_leases",  # of changes of devices
    "actors/processes/recorder.py make_record",  # of records
    "actors/scheduling/followers.py run",  # of changes of devices: when second 0 of the run was
    "fleet_tune/base/records/orders.py give",
    "fleet_tune/base/records/orders.py note_run",
    "fleet_tune/base/records/stores/database.py _make",  # when the store was made
    "fleet_tune/report/narration.py write",  # of lines in a log file
    "fleet_tune/report/progress.py update",  # when the command will be done
    "fleet_tune/runs/framework_times.py time_frameworks",  # when the times were taken
    "fleet_tune/runs/metrics.py add",  # when the last record came
    "actors/processes/learner.py _train_due",  # of the last training
    "fleet_tune/report/dashboard/server.py page",  # how long ago what is shown was
    "fleet_tune/cli/retune.py _show",  # how long ago what is shown was
    "fleet_tune/retuning/version_repository.py publish",
    "fleet_tune/retuning/children.py moment",  # a service of weeks: hours of the day, spans over restarts
    "fleet_tune/runs/publishing/incumbents.py blame",
    "fleet_tune/runs/shared_store/upkeep.py older_than",  # the age of records, by their stamps
}


def read_in(path: Path) -> set[str]:
    """The functions of a module that read the wall clock."""
    found = set()
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTION)]
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL_CLOCK:
                found.add(f"{path.relative_to(ROOT)} {function.name}")
    return found


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "datetime.utcnow", "date.today"}


def test_the_wall_clock_is_read_for_time_stamps_alone() -> None:
    modules = [path for each in ("actors", "devices", "fleet_tune", "policies") for path in (ROOT / each).rglob("*.py")]
    assert set().union(*map(read_in, modules)) == STAMPS
