"""Runs a compiled network, for :mod:`devices.networks.processes.fresh_process`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from devices.error_text import last_line
from devices.host.children.child import die_with_parent, load_tvm
from devices.host.limits.memory import over_memory
from devices.networks.compiled.tensor_file import read, write
from devices.networks.network import Array

if TYPE_CHECKING:
    from devices.networks.compiled.network import CompiledNetwork

KERNELS, ALL = "kernels", "all"
AWAITED = "-"  # instead of a folder, whose name comes on stdin
INPUTS, OUTPUTS = "inputs.safetensors", "outputs.safetensors"
SPECIAL_INPUTS, SPECIAL_OUTPUTS = "special-inputs.safetensors", "special-outputs.safetensors"
EXTENTS = "extents.json"
EXTENT_INPUTS, EXTENT_OUTPUTS = "extent-inputs.safetensors", "extent-outputs.safetensors"
# Exit code of a process in which the network itself raised an error.
FAILED = 70


def main(arguments: Sequence[str]) -> None:
    """Run a network: ``FOLDER WORK BUDGET_SECS PARENT_PID [all | kernels FOLDER...]``.

    Runs it on the inputs in ``WORK``, writes its outputs there and prints ``{"secs": 0}``. With a budget, it only
    prints ``{"secs": seconds of a run}``. With ``kernels``, it prints ``networks``: for this network and those in the
    other folders, the fields of ``InNetworkTimes`` on the inputs of each other extent in ``WORK``, or on the example
    inputs if there are none. With ``all``, it writes the outputs, and prints the time of a run and of each kernel.
    Inputs of other extents come after the example inputs, special inputs last. If the folder is ``-``, its name is a
    line of stdin.
    """
    die_with_parent(int(arguments[3]))
    load_tvm()
    from devices.networks.compiled.network_folder import load

    name = sys.stdin.readline().removesuffix("\n") if arguments[0] == AWAITED else arguments[0]
    if not name:
        return  # the parent has no network to run
    folder, work, budget_secs = Path(name), Path(arguments[1]), float(arguments[2])
    network, inputs = load(folder), list(read(work / INPUTS).values())
    try:
        if KERNELS in arguments[4:]:
            networks = [network, *(load(Path(each)) for each in arguments[5:])]
            sets = [given for _, given in _at_extents(work, len(inputs))] or [inputs]
            times = [[asdict(each.kernel_times(given, budget_secs / len(sets))) for given in sets] for each in networks]
            print(json.dumps({"networks": times}))
            return
        if budget_secs > 0 and ALL not in arguments[4:]:
            print(json.dumps({"secs": network.measure_within(inputs, budget_secs)}))
            return
        outputs = _outputs(network, inputs)
    except Exception as error:
        _fail(error)
    write(work / OUTPUTS, outputs)
    if (work / EXTENTS).exists():
        _run_at_extents(network, work, len(inputs))
    print(json.dumps(_times(network, inputs, budget_secs) if ALL in arguments[4:] else {"secs": 0.0}), flush=True)
    if (work / SPECIAL_INPUTS).exists():
        _run_special(network, work, len(inputs))


def _fail(error: Exception, where: str = "") -> NoReturn:
    """End the process in which a network raised an error."""
    print(f"{where}{last_line(error)}", file=sys.stderr)
    sys.exit(1 if isinstance(error, MemoryError) or over_memory(str(error)) else FAILED)


def _outputs(network: CompiledNetwork, inputs: Sequence[Array]) -> tuple[Array, ...]:
    outputs = network(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _run_at_extents(network: CompiledNetwork, work: Path, count: int) -> None:
    """Run a network on sets of ``count`` inputs, If it fails, end the process with a message that names the extent."""
    found: list[Array] = []
    for name, given in _at_extents(work, count):
        try:
            found += _outputs(network, given)
        except Exception as error:
            _fail(error, f"with {name}: ")
    write(work / EXTENT_OUTPUTS, found)


def _at_extents(work: Path, count: int) -> list[tuple[str, list[Array]]]:
    """Return sets of ``count`` inputs by the names of their extents."""
    if not (work / EXTENTS).exists():
        return []
    arrays = list(read(work / EXTENT_INPUTS).values())
    names = json.loads((work / EXTENTS).read_text())
    return [(name, arrays[number * count : (number + 1) * count]) for number, name in enumerate(names)]


def _run_special(network: CompiledNetwork, work: Path, count: int) -> None:
    """Run a network on further sets of ``count`` inputs. It may fail on them, or crash, as it may compute an index from
    NaN."""
    given = list(read(work / SPECIAL_INPUTS).values())
    found: list[Array] = []
    with contextlib.suppress(Exception):
        for at in range(0, len(given), count):
            found += _outputs(network, given[at : at + count])
        write(work / SPECIAL_OUTPUTS, found)


def _times(network: CompiledNetwork, inputs: Sequence[Array], budget_secs: float) -> dict[str, Any]:
    """Return the times of a network that runs: an error here does not concern its outputs."""
    try:
        return {
            "secs": network.measure_within(inputs, budget_secs),
            "networks": [[asdict(network.kernel_times(inputs, budget_secs))]],
        }
    except Exception as error:
        print(last_line(error), file=sys.stderr)
        return {"secs": None}


if __name__ == "__main__":
    main(sys.argv[1:])
