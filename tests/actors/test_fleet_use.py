"""What the processes of a run have used."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from actors.fleet_usage import FleetUsage, RoleUsage, _own_and_started, since


def test_what_is_used_in_between_is_that_of_the_processes_that_are_there() -> None:
    before = {"builds": ({(7, 1.0): 5.0, (8, 1.0): 90.0}, 10), "gone": ({(1, 1.0): 1.0}, 1)}
    later = {"builds": ({(7, 1.0): 6.0, (8, 2.0): 0.5}, 30), "recorder": ({(9, 1.0): 3.0}, 20)}
    assert since(before, later, 3) == {"builds": RoleUsage(0.5, 30), "recorder": RoleUsage(1.0, 20)}
    assert since(before, later, 0)["recorder"].cpu_secs_a_record == 3.0


def test_what_a_process_has_started_is_told_apart_from_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (own, _), (started, size) = _own_and_started()
        key = child.pid, psutil.Process(child.pid).create_time()
        child.communicate(b"\n")
    assert {pid for pid, _ in own} == {os.getpid()}
    assert key in started
    assert size > 0


def test_the_work_itself_is_not_of_the_runtime() -> None:
    roles = {name: RoleUsage(1e-3, 1) for name in ("scheduler", "builders", "builds", "devices", "device servers")}
    use = FleetUsage(1, 1, 1, 1.0, None, 0.5, {}, {}, roles, 1.0)
    assert use.cpu_secs_a_record == pytest.approx(3e-3)
