"""Timeouts for a device, for what is sent to it, and for what runs there."""

from __future__ import annotations

from dataclasses import dataclass

SLOWEST_LINK_BYTES = 1e6
"""Bytes a second of a link that is slower than those that are reckoned with."""
HOST_ORACLE_SECS = 900.0
"""Seconds that the unscheduled program of a task may take on the machine that drives a device, where it is too slow for
the device (:mod:`devices.client.host_oracle`)."""


@dataclass(frozen=True, slots=True)
class DeviceTimeouts:
    """Seconds after which a device counts as lost, or a candidate as too slow. What it does takes its time beside them:
    the more, the more work there is and the slower the device.

    ``connect_secs``: until its server answers, or a tracker has one. ``upload_secs``: until what is sent to it lies
    there, beside what its bytes take. ``silence_secs``: until a sign of life, while it works. ``candidate_secs``: of
    measuring a candidate, beside what its operations take (:mod:`policies.measuring.run_limit`). ``probe_secs``: until
    it has told something of itself, or run a probe, beside what that takes on the slowest device. ``oracle_secs``:
    until the unscheduled program of a task has run, beside what its operations and its bytes take; a device that takes
    longer is not lost (:mod:`devices.client.output_check`)."""

    connect_secs: float = 15.0
    upload_secs: float = 60.0
    silence_secs: float = 3.0
    candidate_secs: float = 10.0
    probe_secs: float = 60.0
    oracle_secs: float = 150.0

    def sending_secs(self, size_bytes: float) -> float:
        """Return the seconds that sending so much may take."""
        return self.upload_secs + size_bytes / SLOWEST_LINK_BYTES


CPU = DeviceTimeouts()
"""A processor of the host that drives it."""
GPU = DeviceTimeouts(connect_secs=30.0, silence_secs=5.0, probe_secs=120.0)
"""A GPU of that host: its driver takes seconds to begin, in which a process may stand still."""
BOARD = DeviceTimeouts(
    connect_secs=20.0, upload_secs=120.0, silence_secs=6.0, candidate_secs=30.0, probe_secs=120.0, oracle_secs=210.0
)
"""Whatever is reached over a network or a tunnel: it may be small, and the way to it narrow."""
