"""The outcome of a measurement whose session was lost: a fault of the candidate, or of the device."""

from __future__ import annotations

from devices.client.session import ContextLostError, SessionLostError, SessionTimeoutError
from devices.host.children.exit_causes import ended_from_outside
from fleet_tune.base.domain import Measurement, Outcome, StopRule

ILLEGAL = "SIGILL"
"""Signal that ends a session whose code has an instruction that the processor lacks, or whose code was overwritten."""

DAMAGE = ("SIGSEGV", "SIGBUS", ILLEGAL, "SIGABRT")
"""Crashes that earlier damage to the session's process can cause."""

# Signals that end a session's process because of a fault of its kernel. SIGKILL: the kernel took too much memory.
_CRASHES = (*DAMAGE, "SIGFPE", "SIGKILL", "SIGTRAP", "SIGSYS")


def loss_measurement(error: SessionLostError, end: str | None, rule: StopRule | None) -> Measurement:
    """Return the measurement of a candidate whose session was lost.

    Args:
        error: how the session was lost.
        end: how the session ended, as the server says; ``None`` for a server that cannot tell.
        rule: rule by which the candidate ran; ``None`` if it did not run, so that the loss is no fault of its kernel.
    """
    if end is not None and ended_from_outside(end):
        return Measurement(Outcome.KILLED, detail=f"the process that ran the kernel: {end}")
    if rule is None:
        return Measurement(Outcome.DEVICE_LOST, detail=f"{error}{'; ' + end if end else ''}")
    if isinstance(error, ContextLostError):
        return Measurement(Outcome.RUN_ERROR, detail=str(error))
    if isinstance(error, SessionTimeoutError) or (end is not None and "SIGALRM" in end):
        return Measurement(Outcome.RUN_TIMEOUT, detail=f"no result within {rule.timeout_secs:g} s")
    if end is None:
        return Measurement(Outcome.RUN_ERROR, detail=f"the session ended while the kernel ran: {error}")
    if any(name in end for name in _CRASHES) or end.startswith("exited with"):
        return Measurement(Outcome.RUN_ERROR, detail=f"the process that ran the kernel: {end}")
    return Measurement(Outcome.DEVICE_LOST, detail=f"{error}{'; ' + end if end else ''}")
