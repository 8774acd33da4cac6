"""Runs a compiled network in a process of its own, as its users will: for its outputs, and for its time.

A network that crashes takes that process down and nothing else. And in the process that tuned it, the thread pools of
TVM and of the network's framework are already running, with other sizes and with their threads bound to cores: on two
cores that costs up to half of the speed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from devices.host.child import describe_exit, without_torch
from devices.networks.network import Array
from devices.networks.tensor_file import contents, read
from fleet_tune.errors import NetworkRunError
from fleet_tune.records.atomic_file import write_atomically

_TIMEOUT_SECS = 600.0
# Two networks whose times differ by less are timed again.
_CLEAR = 1.25
_ROUNDS = 3
_INPUTS, _OUTPUTS = "inputs.safetensors", "outputs.safetensors"
_ROOT = Path(__file__).resolve().parents[2]


def outputs_of(folder: Path, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of the network in ``folder`` on ``inputs``. Raises :class:`NetworkRunError`."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-network-") as temporary:
        work = Path(temporary)
        _write(work / _INPUTS, inputs)
        _run(folder, work, 0.0)
        return tuple(read(work / _OUTPUTS).values())


def measure(folder: Path, inputs: Sequence[Array], budget_secs: float) -> float:
    """Median seconds per run of the network in ``folder``, of runs that take about ``budget_secs``, of one at least.
    Raises :class:`NetworkRunError`."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-network-") as temporary:
        work = Path(temporary)
        _write(work / _INPUTS, inputs)
        return _run(folder, work, budget_secs)


def measure_in_turn(first: Path, second: Path, inputs: Sequence[Array], budget_secs: float) -> tuple[float, float]:
    """Seconds per run of two networks, each in processes of its own, in turn where they are near each other: what slows
    the machine down hits both. ``budget_secs``: of the first round, for each. Raises :class:`NetworkRunError`."""
    times: tuple[list[float], list[float]] = ([], [])
    folders = (first, second)
    for number in range(_ROUNDS):
        for at in (0, 1) if number % 2 == 0 else (1, 0):
            times[at].append(measure(folders[at], inputs, budget_secs if number == 0 else budget_secs / _ROUNDS))
        ratio = times[0][0] / times[1][0]
        if not 1 / _CLEAR < ratio < _CLEAR:
            break
    return statistics.median(times[0]), statistics.median(times[1])


def _run(folder: Path, work: Path, budget_secs: float) -> float:
    command = [sys.executable, "-m", "devices.networks.fresh_process", str(folder), str(work), str(budget_secs)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TVM_", "OMP_"))}
    path = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECS,
            check=False,
            env={**environment, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired as error:
        raise NetworkRunError(f"it did not end within {_TIMEOUT_SECS:g} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        # After a crash the last line is one of native code's stack.
        told = lines[-1] if lines and done.returncode > 0 else describe_exit(done.returncode)
        raise NetworkRunError(f"its process failed: {told}")
    return float(json.loads(done.stdout.splitlines()[-1])["secs"])


def _write(path: Path, arrays: Sequence[Array]) -> None:
    named = {str(at): np.asarray(array, order="C") for at, array in enumerate(arrays)}
    write_atomically(path, contents(named), durable=False)


def main(arguments: Sequence[str]) -> None:
    """``FOLDER WORK BUDGET_SECS``: run the network on the inputs in ``WORK``, write its outputs there and print
    ``{"secs": 0}``; with a budget print ``{"secs": median}`` alone."""
    without_torch()
    from devices.networks.compiled import load

    folder, work, budget_secs = Path(arguments[0]), Path(arguments[1]), float(arguments[2])
    network, inputs = load(folder), list(read(work / _INPUTS).values())
    if budget_secs > 0:
        print(json.dumps({"secs": network.measure_within(inputs, budget_secs)}))
        return
    outputs = network(*inputs)
    _write(work / _OUTPUTS, outputs if isinstance(outputs, tuple) else (outputs,))
    print(json.dumps({"secs": 0.0}))


if __name__ == "__main__":
    main(sys.argv[1:])
