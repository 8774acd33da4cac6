"""A whole compiled network on a device, over the session in which its kernels were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tvm
from tvm import relax

from devices.builds.executables import flatten
from devices.client.session import ContextLostError, SessionLostError, SessionTimeoutError
from devices.client.session_loss import DAMAGE
from devices.client.workbench import Workbench
from devices.error_text import last_line
from devices.timing.arguments import Array
from devices.timing.in_network import InNetworkTimes
from devices.timing.run_series import calm_secs
from fleet_tune.base.errors import NetworkRunError, UncheckedError
from fleet_tune.base.timeouts import DeviceTimeouts

# Seconds to link and load a library of many kernels, and to run an unscheduled network on a small board.
_LOAD_SECS = 600.0
_RUN_SECS = 600.0
# Signals that end the process on the device because of a fault of the network. SIGKILL mostly means that the device is
# short of memory.
_CRASHES = (*DAMAGE, "SIGFPE")


class LoadedNetwork:
    """A network that is loaded on a device, with its arguments as tensors there.

    The constructor raises SessionLostError if the session ends meanwhile, and TVM's errors if the device cannot load
    the library, has no memory for it, or refuses it.

    Args:
        bench: the device.
        library: shared object of the network.
        arguments: inputs and parameters, in the order of the network's arguments.
        last_exit: returns how a lost session ended, as the server tells; ``None`` if it cannot tell. May raise
            SessionLostError.
        timeouts: time limits of the device, for sending the network.
    """

    def __init__(
        self,
        bench: Workbench,
        library: bytes,
        arguments: Sequence[Array],
        last_exit: Callable[[], str | None],
        timeouts: DeviceTimeouts,
    ) -> None:
        self._bench = bench
        self._last_exit = last_exit
        sent_bytes = len(library) + sum(array.nbytes for array in arguments)
        with bench.session.deadline(_LOAD_SECS + timeouts.sending_secs(sent_bytes)):
            bench.memory.admit(sent_bytes)
            # TVM's virtual machine runs on the device. Of its results only tensors come back.
            self._library = bench.load(library)
            self._machine = relax.VirtualMachine(self._library, bench.device)
            self._arguments = [tvm.runtime.tensor(array, bench.device) for array in arguments]
            self._machine.set_input("main", *self._arguments)

    def outputs(self) -> tuple[Array, ...]:
        """Return the outputs of a run.

        Raises NetworkRunError if the network fails or the device's process crashes, UncheckedError if the session is
        lost for another reason: time, memory, the connection.
        """
        with self._running():
            self._machine.invoke_stateful("main")
            return flatten(self._machine.get_outputs("main"))

    def measure_within(self, budget_secs: float) -> float:
        """Return the seconds of an undisturbed run (:func:`devices.timing.run_series.calm_secs`), from runs that take
        about ``budget_secs`` together. Raises the errors of :meth:`outputs`."""
        with self._running():
            (first_secs,) = self._timed(1)
            if first_secs > budget_secs / 2:
                return first_secs
            return calm_secs(self._timed, self._timed(1)[0], budget_secs)  # the first run allocates

    def kernel_times(self, budget_secs: float) -> InNetworkTimes:
        """Return the time of each kernel within the network, from runs that take about ``budget_secs`` together.

        Raises the errors of :meth:`outputs`, and UncheckedError for a plain TVM RPC server: only the process that runs
        the network can time its calls.
        """
        if not self._bench.session.ours:
            raise UncheckedError("a plain TVM RPC server does not time kernels in a network")
        with self._running():
            timer = self._bench.session.function("fleet_tune.time_in_place")
            return InNetworkTimes(**json.loads(timer(self._library, self._bench.kind, budget_secs, *self._arguments)))

    def _timed(self, repeats: int) -> list[float]:
        evaluator = self._machine.time_evaluator("invoke_stateful", self._bench.device, number=1, repeat=repeats)
        return [float(secs) for secs in evaluator("main").results]

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            with self._bench.session.deadline(_RUN_SECS):
                yield
        except SessionLostError as error:
            raise self._ended(error) from error
        except Exception as error:
            raise NetworkRunError(f"it fails on the device: {last_line(error)}") from error

    def _ended(self, error: SessionLostError) -> NetworkRunError | UncheckedError:
        """Return the error of a network whose session was lost while it ran."""
        try:
            end = self._last_exit() or ""
        except Exception as lost:  # the device is gone altogether
            return UncheckedError(f"the session ended: {error}; then {last_line(lost)}")
        if isinstance(error, ContextLostError):
            return NetworkRunError(f"it fails on the device: {error}")
        if not isinstance(error, SessionTimeoutError) and any(name in end for name in _CRASHES):
            return NetworkRunError(f"its process on the device ended: {end}")
        return UncheckedError(f"the session ended: {error}{'; ' + end if end else ''}")
