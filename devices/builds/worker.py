"""The child process of :class:`devices.builds.builder.BuildWorker`: schedules, compiles and links one candidate at a
time.

Run as ``python -m devices.builds.worker``. TVM is imported once; the design spaces of recent tasks stay in memory. A
request names a task by its id; the first request for a task contains the task itself.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from devices.cuda import compiler as cuda_compiler
from devices.error_text import last_line
from devices.host import warm_child
from devices.host.children.child import Channel
from devices.host.limits.memory import resident_bytes
from devices.host.limits.shortage import MORE_ROOM, is_shortage
from devices.protocol import decode_task
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.errors import UserError

# A task's design space holds a TVM schedule for each sketch: about a megabyte each.
CACHED_TASKS = 64
# Without checks of the arguments of each call: they are a fifth of the code that LLVM compiles, and our arguments
# always fit.
PASS_OPTIONS = {"tirx.disable_assert": True}


def main() -> None:
    channel, requests = warm_child.connect_to_parent()
    serve(channel, requests.get, KernelCompiler())


def serve(channel: Channel, next_request: Callable[[], dict[str, Any]], compiler: KernelCompiler) -> None:
    """Answer requests until the process is killed."""
    channel.send({"ready": True})
    while True:
        request = next_request()
        started = time.perf_counter()
        try:
            answer = compiler.build(request)
        except UserError as error:
            answer = {"status": "user_error", "problem": error.problem, "next_step": error.next_step}
        except Exception as error:
            if is_shortage(error):  # a shortage of this machine, not a fault of the candidate
                answer = {"status": "short", "detail": f"{last_line(error)}: {MORE_ROOM}"}
            else:
                answer = {"status": "error", "detail": last_line(error)}
        answer["build_secs"] = time.perf_counter() - started
        answer["resident_bytes"] = resident_bytes()
        channel.send(answer)


class KernelCompiler:
    """Compiles candidates to libraries. Keeps the design spaces of recent tasks."""

    def __init__(self) -> None:
        # Slow imports: the worker is ready once they are done.
        from devices.builds import linking
        from devices.builds.checks.check_plan import plan_of
        from devices.builds.passes.kernel_passes import use_kernel_passes
        from devices.builds.passes.vector_math import use_vector_math
        from devices.sketches import intrinsics, spaces
        from devices.targets import NATIVE, resolve_target

        use_vector_math()
        use_kernel_passes()
        self._load_intrinsics = intrinsics.load_intrinsics
        self._load_intrinsics(resolve_target(NATIVE))  # most likely needed by the first build
        self._spaces = spaces
        self._link = linking.link
        self._plan_of = plan_of
        self._compiling_for = cuda_compiler.compiling_for
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._space_by_task: dict[str, spaces.DesignSpace] = {}

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request: library, arguments, trace, and more. Passes on any error of TVM or the design
        space."""
        import tvm

        from devices.targets import parse_target, without_late_optimisations

        started = time.perf_counter()
        task = self._task(request)
        target = task.device_class.target
        check: dict[str, Any] | None = None
        if request["candidate"] is None:
            target = without_late_optimisations(target)
            scheduled = self._spaces.unscheduled(task)
            with contextlib.suppress(Exception):  # a program that cannot be read is checked like any other
                check = asdict(self._plan_of(self._spaces.parse_module(task.workload.module)["main"]))
        else:
            sketch, sketch_id, decisions = request["candidate"]
            candidate = Candidate(task.id, sketch, sketch_id, tuple(decisions))
            scheduled = self._space(task).schedule(candidate)
        scheduled_at = time.perf_counter()
        with tvm.transform.PassContext(config=PASS_OPTIONS), self._compiling_for(target):
            module = tvm.tirx.build(scheduled.module, target=parse_target(target))
        compiled_at = time.perf_counter()
        library = self._link(module, target)
        return {
            "status": "ok",
            "library": library,
            "args": [[list(spec.shape), spec.dtype, spec.holds] for spec in scheduled.args],
            "original_args": [[list(spec.shape), spec.dtype, spec.holds] for spec in scheduled.original_args],
            "outputs": list(scheduled.outputs),
            "packed": list(scheduled.packed),
            "trace": scheduled.trace,
            "check": check,
            "schedule_secs": scheduled_at - started,
            "compile_secs": compiled_at - scheduled_at,
            "link_secs": time.perf_counter() - compiled_at,
        }

    def _task(self, request: dict[str, Any]) -> Task:
        """Return the task of a request, which the request contains, or an earlier one did."""
        task_id = request["task_id"]
        if request["task"] is not None:
            task = decode_task(request["task"])
            self._load_intrinsics(task.device_class.target)
            self._tasks[task_id] = task
            if len(self._tasks) > CACHED_TASKS:
                forgotten, _ = self._tasks.popitem(last=False)
                self._space_by_task.pop(forgotten, None)
        self._tasks.move_to_end(task_id)
        return self._tasks[task_id]

    def _space(self, task: Task) -> Any:
        if task.id not in self._space_by_task:
            self._space_by_task[task.id] = self._spaces.DesignSpace(task)
        return self._space_by_task[task.id]


if __name__ == "__main__":
    main()
