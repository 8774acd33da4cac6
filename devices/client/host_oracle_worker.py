"""The child process of :mod:`devices.client.host_oracle`: builds the unscheduled program of a task for the processor of
this machine, and runs it on the inputs of its check.

Run as ``python -m devices.client.host_oracle_worker``. The loops of the program are put into a contiguous order, and
the outer loops run on all cores. The order of the terms of a sum does not change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from devices.error_text import last_line
from devices.host import warm_child
from devices.protocol import decode_check_plan, decode_specs
from devices.timing.arguments import Array, numpy_dtype
from devices.timing.checked_inputs import make_checked_inputs

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
    """Return the outputs of an oracle as a message: ``positive``, and ``runs``, a list that has for each run whether
    its inputs are special, and the bytes of its outputs. See :class:`devices.protocol.OracleOutputs`."""
    import tvm

    from devices.client.output_check import all_runs

    kernel = compiled(request["program"])
    args = decode_specs(request["args"])
    plan = decode_check_plan(request["check"])

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
    from devices.sketches.contiguous_loops import in_contiguous_order
    from devices.sketches.spaces import parse_module
    from devices.targets import NATIVE, parse_target, resolve_target, without_late_optimisations

    module = in_contiguous_order(parse_module(program), in_parallel=True)
    target = without_late_optimisations(resolve_target(NATIVE))
    with tvm.transform.PassContext(config=PASS_OPTIONS):
        return tvm.tirx.build(module, target=parse_target(target))["main"]


def _bytes(outputs: Sequence[Array]) -> list[bytes]:
    return [output.tobytes() for output in outputs]


if __name__ == "__main__":
    main()
