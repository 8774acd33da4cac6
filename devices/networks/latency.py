"""Times a compiled network in a process of its own, as its users will run it.

In the process that tuned it, the thread pools of TVM and of the network's framework are already running, with other
sizes and with their threads bound to cores: on two cores that costs up to half of the speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from devices.networks.tensor_file import contents, read
from fleet_tune.errors import FleetTuneError
from fleet_tune.records.atomic_file import write_atomically

_TIMEOUT_SECS = 600.0
_ROOT = Path(__file__).resolve().parents[2]


class TimingError(FleetTuneError):
    """The compiled network could not be run in a fresh process: a fault of ours, or of the machine."""


def measure_in_fresh_process(folder: Path, inputs: Sequence[npt.NDArray[Any]], budget_secs: float) -> float:
    """Median seconds per run of the network in ``folder`` on ``inputs``, of runs that take about ``budget_secs``."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-timing-") as temporary:
        given = Path(temporary) / "inputs.safetensors"
        arrays = {str(at): np.asarray(array, order="C") for at, array in enumerate(inputs)}
        write_atomically(given, contents(arrays), durable=False)
        command = [sys.executable, "-m", "devices.networks.latency", str(folder), str(given), str(budget_secs)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TVM_", "OMP_"))}
        path = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH", "")]))
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECS,
                check=False,
                env={**environment, "PYTHONPATH": path},
            )
        except subprocess.TimeoutExpired as error:
            raise TimingError(f"timing {folder} took more than {_TIMEOUT_SECS:g} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise TimingError(f"timing {folder} failed: {lines[-1]}")
    return float(json.loads(done.stdout.splitlines()[-1])["secs"])


def main(arguments: Sequence[str]) -> None:
    """``FOLDER INPUTS BUDGET_SECS``: print ``{"secs": median}``."""
    from devices.networks.compiled import load

    folder, given, budget_secs = arguments
    inputs = list(read(Path(given)).values())
    print(json.dumps({"secs": load(folder).measure_within(inputs, float(budget_secs))}))


if __name__ == "__main__":
    main(sys.argv[1:])
