"""A whole compiled network on a device, over the session in which its kernels were measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tvm
from tvm import relax

from devices.builds.executables import flatten
from devices.client.session import SessionLostError
from devices.client.workbench import Workbench
from devices.failures import last_line
from devices.timing.arguments import Array
from fleet_tune.errors import NetworkRunError

# Hundreds of megabytes over a slow link; and an unscheduled network on a small board.
_LOAD_SECS = 600.0
_RUN_SECS = 600.0
_REPEATS = 50


class LoadedNetwork:
    """The library of a network, and its inputs and parameters as tensors there, in the order of its arguments.

    Loading raises SessionLostError where the session ends meanwhile, and what TVM raises where the device cannot load
    the library, has no memory for it, or refuses it.
    """

    def __init__(self, bench: Workbench, library: bytes, arguments: Sequence[Array]) -> None:
        self._bench = bench
        with bench.session.deadline(_LOAD_SECS):
            # TVM's virtual machine runs there; of the results only tensors come back.
            self._machine = relax.VirtualMachine(bench.load(library), bench.device)
            self._machine.set_input("main", *(tvm.runtime.tensor(array, bench.device) for array in arguments))

    def outputs(self) -> tuple[Array, ...]:
        """The outputs of a run. Raises NetworkRunError, also where the device's process crashes."""
        with self._running():
            self._machine.invoke_stateful("main")
            return flatten(self._machine.get_outputs("main"))

    def measure_within(self, budget_secs: float) -> float:
        """Median seconds per run, of runs that take about ``budget_secs``, of one at least. Raises NetworkRunError."""
        with self._running():
            (first_secs,) = self._timed(1)
            repeats = min(_REPEATS, int(budget_secs / first_secs))
            return statistics.median(self._timed(repeats)) if repeats > 1 else first_secs

    def _timed(self, repeats: int) -> list[float]:
        evaluator = self._machine.time_evaluator("invoke_stateful", self._bench.device, number=1, repeat=repeats)
        return [float(secs) for secs in evaluator("main").results]

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            with self._bench.session.deadline(_RUN_SECS):
                yield
        except SessionLostError as error:
            raise NetworkRunError(f"its process on the device ended: {error}") from error
        except Exception as error:
            raise NetworkRunError(f"it fails on the device: {last_line(error)}") from error
