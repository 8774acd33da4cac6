from __future__ import annotations

import pytest

from devices.client.session import ContextLostError, SessionLostError, SessionTimeoutError
from devices.client.session_loss import loss_measurement
from devices.host.children.exit_causes import with_memory_reason
from fleet_tune.base.domain import Outcome, StopRule

RULE = StopRule(timeout_secs=2.0)
GREEDY = with_memory_reason("killed by SIGKILL", 600 << 20, 1000 << 20, 1)
POISONED = ContextLostError("CUDA: an illegal memory access was encountered")
LOST, LATE = SessionLostError("reset"), SessionTimeoutError("no answer within 3 s")


@pytest.mark.parametrize(
    ("error", "end", "outcome", "detail"),
    [
        (LATE, None, Outcome.RUN_TIMEOUT, "no result within 2 s"),
        (LATE, "", Outcome.RUN_TIMEOUT, "no result within 2 s"),
        (LOST, "ended by SIGALRM", Outcome.RUN_TIMEOUT, "no result within 2 s"),
        (LOST, None, Outcome.RUN_ERROR, "the session ended while the kernel ran: reset"),
        (LOST, "ended by SIGSEGV", Outcome.RUN_ERROR, "the process that ran the kernel: ended by SIGSEGV"),
        (LOST, "killed by SIGKILL", Outcome.KILLED, "the process that ran the kernel: killed by SIGKILL"),
        (LATE, "killed by SIGTERM", Outcome.KILLED, "the process that ran the kernel: killed by SIGTERM"),
        (LOST, GREEDY, Outcome.RUN_ERROR, f"the process that ran the kernel: {GREEDY}"),
        (LOST, "exited with 1", Outcome.RUN_ERROR, "the process that ran the kernel: exited with 1"),
        (LOST, "ended by SIGSTOP", Outcome.DEVICE_LOST, "reset; ended by SIGSTOP"),
        (LOST, "", Outcome.DEVICE_LOST, "reset"),
        (POISONED, "", Outcome.RUN_ERROR, str(POISONED)),
        (POISONED, "killed by SIGKILL", Outcome.KILLED, "the process that ran the kernel: killed by SIGKILL"),
    ],
)
def test_how_a_session_ended_tells_whose_fault_it_was(
    error: SessionLostError, end: str | None, outcome: Outcome, detail: str
) -> None:
    measured = loss_measurement(error, end, RULE)
    assert (measured.outcome, measured.detail) == (outcome, detail)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("killed by SIGKILL", Outcome.KILLED),
        ("killed by SIGSEGV", Outcome.DEVICE_LOST),
        ("", Outcome.DEVICE_LOST),
        (None, Outcome.DEVICE_LOST),
    ],
)
def test_what_ends_before_the_kernel_runs_is_no_fault_of_it(end: str | None, outcome: Outcome) -> None:
    assert loss_measurement(LOST, end, None).outcome is outcome
    assert loss_measurement(POISONED, end, None).outcome is outcome
