"""The child process of :mod:`devices.networks.processes.compile_process`: compiles networks into folders.

Run as ``python -m devices.networks.processes.compile_worker``. The answer to each request is ``compiled``, ``refused``
with an error that the user can correct, or ``failed``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.error_text import last_line
from devices.host import warm_child
from devices.protocol import decode_task
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import DiskFullError, OutputFolderError, RecordStoreError, UserError
from fleet_tune.base.precision import Conversion
from fleet_tune.base.shapes.shapes import parse_shapes

if TYPE_CHECKING:
    from devices.builds.executables import SymbolicSpec

REFUSALS: dict[str, type[UserError]] = {
    kind.__name__: kind for kind in (DiskFullError, RecordStoreError, OutputFolderError, UserError)
}
"""Errors that the user can correct, the narrowest class first."""


def main() -> None:
    channel, requests = warm_child.connect_to_parent()
    from devices.networks.compiled.network_folder import compile_network
    from devices.networks.processes.module_file import read_module
    from devices.networks.tasks.extraction import DynamicTask
    from devices.networks.tasks.lowering import LoweredNetwork

    channel.send({"ready": True})
    while True:
        request = requests.get()
        try:
            lowered = LoweredNetwork(
                name=request["name"],
                fingerprint=request["fingerprint"],
                device_class=DeviceClass(*request["device_class"]),
                module=read_module(Path(request["module"]), "c"),
                tasks=tuple(decode_task(task) for task in request["tasks"]),
                workloads=request["workloads"],
                inputs=tuple((name, _spec(spec)) for name, spec in request["inputs"]),
                outputs=tuple(_spec(spec) for spec in request["outputs"]),
                shapes=request["shapes"] and parse_shapes(request["shapes"]),
                dynamic={name: DynamicTask(**task) for name, task in request["dynamic"].items()},
                left_out=tuple((step, reason) for step, reason in request["left_out"]),
                conversion=request["conversion"] and Conversion.of_fields(request["conversion"]),
            )
            compile_network(lowered, request["best"], Path(request["out"]), json.loads(request["extra"]))
        except UserError as error:
            kind = next(name for name, kind in REFUSALS.items() if isinstance(error, kind))
            channel.send({"refused": [kind, error.problem, error.next_step]})
        except Exception as error:
            channel.send({"failed": last_line(error)})
        else:
            channel.send({"compiled": True})


def _spec(value: dict[str, Any]) -> SymbolicSpec:
    from devices.builds.executables import SymbolicSpec

    return SymbolicSpec(tuple(value["shape"]), value["dtype"])


if __name__ == "__main__":
    main()
