"""Timeouts for a device, for data that is sent to it, and for programs that run on it."""

from __future__ import annotations

from dataclasses import dataclass

SLOWEST_LINK_BYTES = 1e6
"""Bytes per second of the slowest link that timeouts allow for."""
HOST_ORACLE_SECS = 900.0
"""Seconds that the unscheduled program of a task may take on the machine that drives a device, if it is too slow for
the device (:mod:`devices.client.host_oracle`)."""


@dataclass(frozen=True, slots=True)
class DeviceTimeouts:
    """Seconds after which a device counts as lost, or a candidate as too slow. The time for the work itself is added to
    them: the more work there is and the slower the device, the longer.

    ``connect_secs``: until the server of the device answers, or a tracker has a device. ``upload_secs``: until data
    that is sent to the device has arrived, plus the time for its bytes. ``silence_secs``: between two signs of life
    while the device works. ``candidate_secs``: to measure a candidate, plus the time for its operations
    (:mod:`policies.measuring.run_limit`). ``probe_secs``: until the device has described itself, or run a probe, plus
    the time that this takes on the slowest device. ``oracle_secs``: until the unscheduled program of a task has run,
    plus the time for its operations and bytes; a device that takes longer is not lost
    (:mod:`devices.client.output_check`)."""

    connect_secs: float = 15.0
    upload_secs: float = 60.0
    silence_secs: float = 3.0
    candidate_secs: float = 10.0
    probe_secs: float = 60.0
    oracle_secs: float = 150.0

    def sending_secs(self, size_bytes: float) -> float:
        """Return the seconds that sending ``size_bytes`` may take."""
        return self.upload_secs + size_bytes / SLOWEST_LINK_BYTES


CPU = DeviceTimeouts()
"""Timeouts of a device that is a CPU of the host that drives it."""
GPU = DeviceTimeouts(connect_secs=30.0, silence_secs=5.0, probe_secs=120.0)
"""Timeouts of a GPU of that host. Its driver takes seconds to start, and a process may stand still during that time."""
BOARD = DeviceTimeouts(
    connect_secs=20.0, upload_secs=120.0, silence_secs=6.0, candidate_secs=30.0, probe_secs=120.0, oracle_secs=210.0
)
"""Timeouts of a device that is reached over a network or a tunnel. It may be small, and the link to it slow."""
