"""What every device offers, whatever stands behind it: a TVM RPC server, or a simulation."""

from __future__ import annotations

from typing import Protocol

from devices.artifact import Artifact, MeasureRequest
from fleet_tune.domain import Fingerprint, Measurement


class Device(Protocol):
    """One device. Not thread-safe: one owner calls it. Every call returns within a deadline."""

    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises DeviceUnreachableError."""

    def ping(self) -> float:
        """Seconds of one round trip to the device's server. Raises DeviceUnreachableError."""

    def reference_secs(self) -> float:
        """Seconds of one run of the reference kernel, the one of :attr:`Fingerprint.reference_secs`.

        Raises DeviceUnreachableError where the device does not answer, ReferenceKernelError where it answers and the
        kernel fails.
        """

    def vitals(self) -> dict[str, float]:
        """Temperature and clock as far as the device offers them (see :mod:`devices.vitals`); nothing where it does not
        answer."""

    def add_reference(self, artifact: Artifact) -> None:
        """Keep the unscheduled program of a task (an artifact with no candidate) to check results against.

        Raises ValueError for an artifact with a candidate.
        """

    def measure(self, request: MeasureRequest) -> Measurement:
        """Measure one candidate; however that ends is a value.

        A result below ``request.incumbent_secs`` was compared with the reference's output: it is ``verified``, or its
        outcome is WRONG_OUTPUT. ``build_secs`` is the artifact's.

        Raises ValueError for an artifact without a candidate, or of a task whose reference was not added.
        """

    def close(self) -> None:
        """Let go of the device. May be called twice."""
