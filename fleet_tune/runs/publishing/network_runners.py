"""Runners of compiled networks before they are published: this machine, or a device of the class."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from devices.networks.network import Array, WeightedInputs
from devices.networks.processes import fresh_process
from devices.timing.in_network import InNetworkTimes
from fleet_tune.base.errors import NetworkRunError, UncheckedError
from fleet_tune.base.results import slowness
from fleet_tune.runs.publishing.quiet_host import QuietHost

BUDGET_SECS = 3.0
"""Seconds to measure one network."""
ROUNDS = 3
"""Rounds in which two networks are measured in turn."""
THIS_MACHINE = "this machine"
_T = TypeVar("_T")


class NetworkRunResult(NamedTuple):
    """The outputs and times of a network."""

    outputs: tuple[Array, ...]
    times: tuple[float, InNetworkTimes] | None
    """Seconds of a run, and the time of each kernel in its place. None if the network cannot be timed."""
    others_cores: float | None = None
    """See :attr:`NetworkRunner.others_cores`."""
    throttled: float = 0.0
    """See :attr:`NetworkRunner.throttled`."""


class NetworkRunner(Protocol):
    """Runs networks that were compiled into folders, on the example inputs. Methods that run a network raise
    :class:`NetworkRunError` if it crashes or fails, :class:`UncheckedError` if it cannot be run."""

    estimate_secs: float | None
    """Estimated seconds of the tuned network. None if they are not known. The runner of this machine times a network
    again that takes much longer."""

    @property
    def name(self) -> str: ...

    @property
    def others_cores(self) -> float | None:
        """The average number of processor cores that other processes took from the network while networks were timed
        last. None if it is not known, as for a device."""

    @property
    def throttled(self) -> float:
        """The share of periods in which this machine's process used up its CPU quota and stood still, while networks
        were timed last. 0 for a device."""

    @property
    def special_outputs(self) -> Sequence[tuple[Array, ...]]:
        """The outputs on each set of special inputs, of the network that :meth:`outputs` or :meth:`tried` ran last.
        Empty if it failed on one of them, or if there are no special inputs."""

    @property
    def extent_outputs(self) -> Mapping[str, tuple[Array, ...]]:
        """The outputs at each of the other extents of the dynamic dimensions, by the extent's name, of the network that
        :meth:`outputs` or :meth:`tried` ran last. Those methods raise if the network fails at one of the extents."""

    def outputs(self, folder: Path) -> tuple[Array, ...]: ...

    def expect(self) -> None:
        """Prepare for a call of :meth:`tried` while its network is being compiled."""

    def tried(self, folder: Path) -> NetworkRunResult:
        """Return the outputs and times of one network."""

    def measure_secs(self, folder: Path) -> float:
        """Measure the seconds of an undisturbed run (:mod:`devices.timing.run_series`)."""

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        """Measure the seconds of a run of two networks, under the same conditions as far as possible."""

    def undisturbed(self, measure: Callable[[], _T], beside: Path, beside_secs: float) -> _T:
        """Return the result of ``measure`` on an undisturbed host. The host counts as undisturbed if the network in the
        folder ``beside`` takes about ``beside_secs`` again. The runner of a device calls ``measure`` once."""

    def kernel_times(self, folder: Path) -> InNetworkTimes:
        """Measure the time of each kernel in its place in the network."""

    def kernel_times_interleaved(self, folders: Sequence[Path], rounds: int) -> Iterator[list[InNetworkTimes]]:
        """Measure the kernels of several networks in rounds. Yield in each round the times of each network: on this
        machine over the most frequent extents, on a device at the typical extents."""

    def release(self) -> None:
        """Release the device for others until it is needed again."""

    def close(self) -> None: ...


class LocalNetworkRunner:
    """Runs networks on this machine, each run in its own process.

    Args:
        inputs: the example inputs.
        special: sets of inputs with special values.
        host: times networks again if other processes disturb them.
        at_extents: inputs of other extents of the dynamic dimensions, by the extent's name.
        frequent: weighted inputs of the most frequent extents. Empty if shapes are fixed.
    """

    name = THIS_MACHINE

    def __init__(
        self,
        inputs: Sequence[Array],
        special: Sequence[Sequence[Array]] = (),
        host: QuietHost | None = None,
        at_extents: Mapping[str, Sequence[Array]] = MappingProxyType({}),
        frequent: Sequence[WeightedInputs] = (),
    ) -> None:
        self._inputs = inputs
        self._frequent = frequent or [(1.0, inputs)]
        self._others = fresh_process.OtherInputs(special, at_extents)
        self.special_outputs: Sequence[tuple[Array, ...]] = ()
        self.extent_outputs: Mapping[str, tuple[Array, ...]] = {}
        self._host = QuietHost() if host is None else host
        self._expecting: fresh_process.PreloadedProcess | None = None
        self.others_cores: float | None = None
        self.throttled = 0.0
        self.estimate_secs: float | None = None

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        found = fresh_process.outputs_of_all(folder, self._inputs, self._others)
        self.special_outputs, self.extent_outputs = found.special, found.at_extents
        return found.outputs

    def expect(self) -> None:
        if self._expecting is None:
            with contextlib.suppress(UncheckedError):  # tried() raises it again
                self._expecting = self._preloaded()

    def tried(self, folder: Path) -> NetworkRunResult:
        process, self._expecting = self._expecting, None
        process = process or self._preloaded()
        outputs: tuple[Array, ...] = ()

        def first() -> tuple[float, InNetworkTimes] | None:
            nonlocal outputs
            found, times = process.tried(folder)
            outputs, self.special_outputs, self.extent_outputs = found.outputs, found.special, found.at_extents
            return times

        def again() -> tuple[float, InNetworkTimes] | None:
            with contextlib.suppress(NetworkRunError, UncheckedError):  # it has run before
                return fresh_process.measure(folder, self._inputs, BUDGET_SECS), self.kernel_times(folder)
            return None

        times = self._timed(first, again, lambda found: None if found is None else found[0])
        return NetworkRunResult(outputs, times, self.others_cores, self.throttled)

    def measure_secs(self, folder: Path) -> float:
        return self._timed(lambda: fresh_process.measure(folder, self._inputs, BUDGET_SECS), secs_of=lambda secs: secs)

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        def measure() -> tuple[float, float]:
            return fresh_process.measure_in_turn(first, second, self._inputs, BUDGET_SECS)

        return self._timed(measure, secs_of=lambda secs: secs[0])

    def undisturbed(self, measure: Callable[[], _T], beside: Path, beside_secs: float) -> _T:
        def slowness_now(found: _T) -> float:
            with contextlib.suppress(NetworkRunError, UncheckedError):  # it has run before
                if found is not None:
                    return fresh_process.measure(beside, self._inputs, BUDGET_SECS / ROUNDS) / beside_secs
            return 0.0

        return self._host.timed(measure, slowness=slowness_now)

    def kernel_times(self, folder: Path) -> InNetworkTimes:
        return fresh_process.kernel_times(folder, self._inputs, BUDGET_SECS)

    def kernel_times_interleaved(self, folders: Sequence[Path], rounds: int) -> Iterator[list[InNetworkTimes]]:
        return fresh_process.kernel_times_interleaved(folders, self._frequent, rounds, BUDGET_SECS / rounds)

    def release(self) -> None:
        pass  # no process holds the device between runs

    def close(self) -> None:
        if self._expecting is not None:
            self._expecting.close()

    def _preloaded(self) -> fresh_process.PreloadedProcess:
        return fresh_process.PreloadedProcess(self._inputs, BUDGET_SECS, self._others)

    def _timed(
        self,
        measure: Callable[[], _T],
        again: Callable[[], _T] | None = None,
        secs_of: Callable[[_T], float | None] = lambda _: None,
    ) -> _T:
        found = self._host.timed(measure, again, lambda each: slowness(secs_of(each), self.estimate_secs))
        self.others_cores, self.throttled = self._host.others_cores, self._host.throttled
        return found
