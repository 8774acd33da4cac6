"""A child process of the build worker whose "compiler" does what a candidate's first decision says."""

from __future__ import annotations

from pathlib import Path

from devices.protocol import BuildRequest
from fleet_tune.base.domain import Task
from tests.helpers.tasks import make_candidate

STAND_IN = """
import os, queue, signal, subprocess, sys, time
from devices.builds.worker import serve
from devices.host.children.child import parent_channel, read_in_background
from devices.host.limits.memory import limit_memory
from devices.protocol import decode_task
from fleet_tune.base.errors import UserError

class Compiler:
    tasks = {}
    ballast = []
    def build(self, request):
        if request["task"] is not None:
            self.tasks[request["task_id"]] = decode_task(request["task"])
        task = self.tasks[request["task_id"]]
        what = request["candidate"][2][0] if request["candidate"] else 0
        if what == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == 2:
            time.sleep(600)
        if what == 3:
            raise ValueError("pages of stack\\n  the reason  \\n")
        if what == 4:
            raise UserError("no linker", "install one")
        if what == 5:
            self.ballast.append(bytearray(os.urandom(64 << 20)))
        if what == 6:
            bytearray(512 << 20)
        if what == 8:
            with open("/proc/self/comm", "w") as name:
                name.write("slow")
            time.sleep(0.5)
        if what == 9:
            subprocess.run(["kill", "-9", str(os.getpid())])
        if what == 7:
            try:
                bytearray(512 << 20)
            except MemoryError:
                print("LLVM ERROR: out of memory", flush=True)
                os.abort()
        return {
            "status": "ok", "library": task.workload.name.encode(), "args": [[[2, 3], "float32"]],
            "original_args": [[[6], "float32"]], "outputs": [0], "packed": [0], "trace": str(os.getpid()),
            "schedule_secs": 0.1, "compile_secs": 0.2, "link_secs": 0.3,
        }

limit_memory(int(sys.argv[1].partition("=")[2]))
channel = parent_channel()
requests = queue.SimpleQueue()
read_in_background(channel, requests.put)
serve(channel, requests.get, Compiler())
"""

OK, CRASH, HANG, ERROR, USER_ERROR, GROW, HOARD, ABORT, SLOW, KILLED = range(10)


def write_stand_in(folder: Path) -> str:
    """The name of the module, written to this folder."""
    (folder / "stand_in_worker.py").write_text(STAND_IN)
    return "stand_in_worker"


def stand_in_request(task: Task, what: int, timeout_secs: float = 30.0) -> BuildRequest:
    """The request for the candidate that does ``what``."""
    return BuildRequest(task, make_candidate(task, what, 7), timeout_secs)
