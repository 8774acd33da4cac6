"""Who is to blame for a session that was lost while a candidate ran: the candidate, or the device."""

from __future__ import annotations

from devices.client.session import SessionLostError, SessionTimeoutError
from devices.host.children.exit_causes import ended_from_outside
from fleet_tune.base.domain import Measurement, Outcome, StopRule

ILLEGAL = "SIGILL"
"""In the detail of a session whose code has an instruction that its processor lacks, or was overwritten."""

DAMAGE = ("SIGSEGV", "SIGBUS", ILLEGAL, "SIGABRT")
"""Of crashes that damage done to the session's process earlier can cause."""

# How a session's process ends by the fault of the kernel it ran; by SIGKILL where the kernel took too much memory.
_CRASHES = (*DAMAGE, "SIGFPE", "SIGKILL", "SIGTRAP", "SIGSYS")


def loss_measurement(error: SessionLostError, end: str | None, rule: StopRule | None) -> Measurement:
    """The measurement of a candidate whose session ended with ``error`` while it ran by ``rule``, None where it did not
    run: then the end is no fault of its kernel.

    ``end``: what the server says of how the session ended, None for one that cannot tell.
    """
    if end is not None and ended_from_outside(end):
        return Measurement(Outcome.KILLED, detail=f"the process that ran the kernel: {end}")
    if rule is None:
        return Measurement(Outcome.DEVICE_LOST, detail=f"{error}{'; ' + end if end else ''}")
    if isinstance(error, SessionTimeoutError) or (end is not None and "SIGALRM" in end):
        return Measurement(Outcome.RUN_TIMEOUT, detail=f"no result within {rule.timeout_secs:g} s")
    if end is None:
        return Measurement(Outcome.RUN_ERROR, detail=f"the session ended while the kernel ran: {error}")
    if any(name in end for name in _CRASHES) or end.startswith("exited with"):
        return Measurement(Outcome.RUN_ERROR, detail=f"the process that ran the kernel: {end}")
    return Measurement(Outcome.DEVICE_LOST, detail=f"{error}{'; ' + end if end else ''}")
