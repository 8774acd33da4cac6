"""The connection of a process to the one device that it owns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from devices.host.children.child import without_torch
from devices.protocol import Device

OpenDevice = Callable[[], contextlib.AbstractContextManager[Device]]
"""Connects to a device, see :func:`devices.device_factory.open_device`."""


class DeviceConnection:
    """Connects at the first use of the device, so that an error of connecting is the answer to a call and does not end
    the actor. After :meth:`close` it connects again."""

    def __init__(self, open_device: OpenDevice) -> None:
        self._open_device = open_device
        self._opened = contextlib.ExitStack()
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The device. Raises :class:`DeviceUnreachableError`."""
        if self._device is None:
            without_torch()  # this process needs only TVM, which otherwise loads torch too
            self._device = self._opened.enter_context(self._open_device())
        return self._device

    def close(self) -> None:
        """End the connection, if there is one."""
        self._opened.close()
        self._opened = contextlib.ExitStack()
        self._device = None
