"""The child process of :mod:`devices.client.host_oracle`: builds the unscheduled program of a task for the processor of
this machine, and runs it on the inputs of its check.

Run as ``python -m devices.client.host_oracle_worker``. The outer loops of its statements run on all cores: the order of
no sum changes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from devices.builds.cache import check_plan
from devices.error_text import last_line
from devices.host import warm_child
from devices.protocol import TensorSpec
from devices.timing.arguments import Array, numpy_dtype
from devices.timing.checked_inputs import make_checked_inputs

if TYPE_CHECKING:  # slow to import
    import tvm

_NICENESS = 10


def main() -> None:
    os.nice(_NICENESS)
    channel, requests = warm_child.connect_to_parent()
    from devices.builds.passes.kernel_passes import use_kernel_passes
    from devices.builds.passes.vector_math import use_vector_math

    use_vector_math()
    use_kernel_passes()
    channel.send({"ready": True})
    while True:
        request = requests.get()
        try:
            answer = computed(request)
        except Exception as error:
            answer = {"failed": last_line(error)}
        channel.send(answer)


def computed(request: dict[str, Any]) -> dict[str, Any]:
    """Return ``positive``, and ``runs``: for each, whether its inputs are special, and the bytes of its outputs; see
    :class:`devices.protocol.OracleOutputs`."""
    import tvm

    from devices.client.output_check import all_runs

    kernel = compiled(request["program"])
    args = [TensorSpec(tuple(shape), dtype) for shape, dtype in request["args"]]
    plan = check_plan(request["check"])

    def outputs(positive: bool, special: bool) -> list[Array]:
        arrays = make_checked_inputs(request["task_id"], args, request["outputs"], positive, plan, special)
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        kernel(*tensors)
        return [tensors[at].numpy().astype(numpy_dtype(args[at].dtype), copy=False) for at in request["outputs"]]

    found = all_runs(outputs, plan)
    return {"positive": found.positive, "runs": [[run.special, _bytes(run.outputs)] for run in found.runs]}


def compiled(program: str) -> Any:
    """Return the function ``main`` of a workload's module, built for the processor of this machine."""
    import tvm

    from devices.builds.worker import PASS_OPTIONS
    from devices.sketches.spaces import parse_module
    from devices.targets import NATIVE, parse_target, resolve_target

    target = resolve_target(NATIVE)
    with tvm.transform.PassContext(config=PASS_OPTIONS):
        return tvm.tirx.build(_on_all_cores(parse_module(program)), target=parse_target(target))["main"]


def _on_all_cores(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with the outer loops of each of its blocks in parallel, as far as no sum runs over them."""
    from tvm.s_tir import Schedule

    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    with contextlib.suppress(Exception):  # one that cannot be scheduled runs as it is
        for block in schedule.get_child_blocks(schedule.get_sblock("root", "main")):
            schedule = _parallel(schedule, schedule.get(block).name_hint)
    return schedule.mod


def _parallel(schedule: Any, name: str) -> Any:
    """Return the schedule with as many outer loops of a block in parallel as can be, the innermost one left out."""
    for count in range(max(1, len(schedule.get_loops(schedule.get_sblock(name, "main"))) - 1), 0, -1):
        tried = schedule.copy()
        loops = tried.get_loops(tried.get_sblock(name, "main"))[:count]
        with contextlib.suppress(Exception):  # a sum runs over one of them
            tried.parallel(tried.fuse(*loops) if count > 1 else loops[0])
            return tried
    return schedule


def _bytes(outputs: Sequence[Array]) -> list[bytes]:
    return [output.tobytes() for output in outputs]


if __name__ == "__main__":
    main()
