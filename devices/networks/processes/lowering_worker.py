"""The child process of :mod:`devices.networks.processes.lowering_process`: lowers a network, and runs it untuned.

Run as ``python -m devices.networks.processes.lowering_worker``. Networks, inputs and outputs are in files, which the
request names (:mod:`devices.networks.processes.module_file`, :mod:`devices.networks.compiled.tensor_file`). A request
for lowering is answered with ``step`` and ``optional`` before each step, then with ``lowered``, ``refused``, or (if TVM
fails) ``failed``. A request for a run is answered with ``secs`` or ``failed``.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from devices.error_text import last_line
from devices.host import warm_child
from devices.host.children.child import Channel
from devices.networks.processes.exchange_folder import MORE_SPACE
from devices.protocol import encode_task
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError
from fleet_tune.base.precision import Conversion
from fleet_tune.base.shapes.shapes import Shapes, parse_shapes


def main() -> None:
    channel, requests = warm_child.connect_to_parent()
    import devices.networks.tasks.lowering  # noqa: F401 - slow to import: this process is ready when it has done so

    channel.send({"ready": True})
    while True:
        request = requests.get()
        try:
            answer = _ran(request) if "inputs" in request else _lowered(request, channel)
        except Exception as error:
            answer = {"failed": last_line(error)}
        channel.send(answer)


def _lowered(request: dict[str, Any], channel: Channel) -> dict[str, Any]:
    from devices.networks.processes.module_file import read_module, write_module
    from devices.networks.tasks.lowering import LoweringStepError, LoweringSteps, lower_network

    def report_step(step: str, optional: bool) -> None:
        channel.send({"step": step, "optional": optional})

    report_step("the reading of the module", False)
    module = read_module(Path(request["network"]), "r+")
    device_class, names = DeviceClass(*request["device_class"]), request["input_names"]
    steps = LoweringSteps(request["name"], request["without"], report_step)
    conversion = None if request["conversion"] is None else Conversion.of_fields(request["conversion"])
    try:
        lowered = lower_network(module, "", names, device_class, steps, conversion, _shapes(request["shapes"]))
    except LoweringStepError as error:
        return {"failed": last_line(error.__cause__ or error)}
    except NetworkError as error:
        supported = not isinstance(error, UnsupportedNetworkError)
        return {"refused": [error.problem, error.next_step], "supported": supported}
    report_step("the writing of the module", False)
    try:
        write_module(lowered.module, Path(request["into"]))
    except OSError as error:
        return {"refused": [f"the lowered network cannot be written: {error}", MORE_SPACE], "supported": True}
    return {
        "lowered": {
            "tasks": [encode_task(task) for task in lowered.tasks],
            "workloads": dict(lowered.workloads),
            "dynamic": {name: asdict(task) for name, task in lowered.dynamic.items()},
            "inputs": [[name, asdict(spec)] for name, spec in lowered.inputs],
            "outputs": [asdict(spec) for spec in lowered.outputs],
            "left_out": [list(each) for each in lowered.left_out],
            "quantized": lowered.quantized,
            "products": None if lowered.products is None else asdict(lowered.products),
            "halves": list(lowered.halves),
            "convertible": [asdict(each) for each in lowered.convertible],
        }
    }


def _shapes(text: str | None) -> Shapes | None:
    return None if text is None else parse_shapes(text)


def _ran(request: dict[str, Any]) -> dict[str, Any]:
    from devices.networks.compiled.tensor_file import read, write
    from devices.networks.processes.module_file import read_module
    from devices.networks.tasks.lowering import run_untuned

    inputs = list(read(Path(request["inputs"])).values())
    run = run_untuned(read_module(Path(request["network"]), "r+"), inputs)
    write(Path(request["outputs"]), run.outputs)
    return {"secs": run.secs}


if __name__ == "__main__":
    main()
