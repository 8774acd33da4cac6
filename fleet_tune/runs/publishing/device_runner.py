"""A device of the fleet as the runner of a compiled network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from devices.networks.compiled.network_files import NetworkFiles
from devices.networks.network import Array
from devices.timing.in_network import InNetworkTimes
from devices.timing.network_device import NetworkDevice, NetworkHandle
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.errors import FleetTuneError, NetworkRunError, UncheckedError
from fleet_tune.runs.fleet.device_access import opened
from fleet_tune.runs.publishing.network_runners import BUDGET_SECS, ROUNDS, NetworkRunResult

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Loaded:
    """A network that is loaded on a device, with its inputs."""

    handle: NetworkHandle
    files: NetworkFiles
    inputs: Sequence[Array]

    def outputs(self) -> tuple[Array, ...]:
        return self.files.outputs(self.inputs, self.handle.outputs())


class DeviceNetworkRunner:
    """Runs networks on a device of the fleet. The session with the device's server is opened when it is first
    needed."""

    def __init__(
        self,
        config: DeviceConfig,
        inputs: Sequence[Array],
        special: Sequence[Sequence[Array]] = (),
        at_extents: Mapping[str, Sequence[Array]] = MappingProxyType({}),
    ) -> None:
        self.name = config.name
        self._special = special
        self._at_extents = at_extents
        self.special_outputs: Sequence[tuple[Array, ...]] = ()
        self.extent_outputs: Mapping[str, tuple[Array, ...]] = {}
        self._config = config
        self._inputs = inputs
        self._open = ExitStack()
        self._device: NetworkDevice | None = None
        self.others_cores: float | None = None
        self.throttled = 0.0
        self.estimate_secs: float | None = None

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        outputs = self._loaded(folder).outputs()
        self._run_at_extents(folder)
        self._run_special(folder)
        return outputs

    def expect(self) -> None:
        pass

    def tried(self, folder: Path) -> NetworkRunResult:
        network = self._loaded(folder)
        outputs = network.outputs()
        self._run_at_extents(folder)
        try:
            run = network.handle
            return NetworkRunResult(outputs, (run.measure_within(BUDGET_SECS), run.kernel_times(BUDGET_SECS)))
        except (NetworkRunError, UncheckedError):
            return NetworkRunResult(outputs, None)
        finally:
            self._run_special(folder)

    def measure_secs(self, folder: Path) -> float:
        return self._loaded(folder).handle.measure_within(BUDGET_SECS)

    def measure_in_turn(self, first: Path, second: Path) -> tuple[float, float]:
        networks = [self._loaded(folder).handle for folder in (first, second)]
        rounds = [[each.measure_within(BUDGET_SECS / ROUNDS) for each in networks] for _ in range(ROUNDS)]
        return min(each[0] for each in rounds), min(each[1] for each in rounds)

    def undisturbed(self, measure: Callable[[], _T], beside: Path, beside_secs: float) -> _T:  # noqa: ARG002
        return measure()

    def kernel_times(self, folder: Path) -> InNetworkTimes:
        return self._loaded(folder).handle.kernel_times(BUDGET_SECS)

    def kernel_times_interleaved(self, folders: Sequence[Path], rounds: int) -> Iterator[list[InNetworkTimes]]:
        # On the example inputs alone: the device would hold the weights of each network once for each set of inputs.
        networks = [self._loaded(folder).handle for folder in folders]
        for number in range(rounds):
            ordered = networks if number % 2 == 0 else networks[::-1]
            timed = [each.kernel_times(BUDGET_SECS / rounds) for each in ordered]
            yield timed if number % 2 == 0 else timed[::-1]

    def release(self) -> None:
        self.close()  # the session is opened again when it is needed

    def close(self) -> None:
        self._device = None
        self._open.close()

    def _run_at_extents(self, folder: Path) -> None:
        self.extent_outputs = {}
        for name, inputs in self._at_extents.items():
            try:
                self.extent_outputs |= {name: self._loaded(folder, inputs).outputs()}
            except (NetworkRunError, UncheckedError) as error:
                raise type(error)(f"with {name}: {error}") from error

    def _run_special(self, folder: Path) -> None:
        self.special_outputs = ()
        with contextlib.suppress(NetworkRunError, UncheckedError):  # an index may be computed from a NaN
            self.special_outputs = [self._loaded(folder, inputs).outputs() for inputs in self._special]

    def _loaded(self, folder: Path, inputs: Sequence[Array] | None = None) -> _Loaded:
        """Load the network in ``folder``, with the example inputs or the given ones."""
        if self._device is None:
            try:
                device = self._open.enter_context(opened(self._config))
            except FleetTuneError as error:
                raise UncheckedError(f"device {self.name}: {error}") from error
            if not isinstance(device, NetworkDevice):
                raise UncheckedError(f"device {self.name} answers from a dataset and runs nothing")
            self._device = device
        files, given = NetworkFiles.read(folder), inputs or self._inputs
        return _Loaded(self._device.load_network(files.library, files.arguments(given)), files, given)
