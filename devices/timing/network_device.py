"""Interface of devices that run whole networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from devices.protocol import Device
from devices.timing.arguments import Array
from devices.timing.in_network import InNetworkTimes


class NetworkHandle(Protocol):
    """A compiled network that is loaded on a device with its inputs and parameters.

    Every method raises :class:`fleet_tune.base.errors.NetworkRunError` if the network fails or crashes, UncheckedError
    if the device is lost, or its server does not support the call.
    """

    def outputs(self) -> tuple[Array, ...]: ...

    def measure_within(self, budget_secs: float) -> float:
        """Return the seconds of an undisturbed run, from runs that take about ``budget_secs`` together
        (:func:`devices.timing.run_series.calm_secs`)."""

    def kernel_times(self, budget_secs: float) -> InNetworkTimes:
        """Return the time of each kernel within the network."""


@runtime_checkable
class NetworkDevice(Device, Protocol):
    """A device that runs whole networks too."""

    def load_network(self, library: bytes, arguments: Sequence[Array]) -> NetworkHandle:
        """Load a compiled network with its inputs and parameters, in the order of its arguments. Raises
        UncheckedError."""
