from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil

# Ray itself lets its agents wait for a minute for a server that is gone.
DEADLINE_SECS = 30.0
OWNER = """
import json, sys, time
import psutil
from actors.cluster import connected

with connected(None):
    import ray

    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self):
            return True

    actor = Actor.remote()
    ray.get(actor.answer.remote())
    assert "ray.dashboard.optional_deps" not in sys.modules
    print(json.dumps([[each.pid, each.cmdline()] for each in psutil.Process().children(recursive=True)]), flush=True)
    sys.stdin.read()
"""


def test_it_has_the_processes_that_are_used_and_they_end_when_their_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            told: list[tuple[int, list[str]]] = json.loads(owner.stdout.readline())
            processes = [psutil.Process(pid) for pid, _ in told]
        finally:
            owner.send_signal(signal.SIGKILL)
    commands = [" ".join(command) for _, command in told]
    for used in ("gcs_server", "raylet", "Actor", "DashboardAgent", "RuntimeEnvAgent"):
        assert any(used in command for command in commands), commands
    for unused in ("dashboard.py", "monitor.py"):
        assert not any(unused in command.partition(" --")[0] for command in commands), commands
    _, alive = psutil.wait_procs(processes, DEADLINE_SECS)
    assert not alive, commands
