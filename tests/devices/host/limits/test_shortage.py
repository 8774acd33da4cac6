from __future__ import annotations

import errno

import pytest

from devices.host.limits.shortage import is_shortage


def _raised_from(cause: BaseException) -> BaseException:
    error = RuntimeError("the linker failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        _raised_from(OSError(errno.EMFILE, "Too many open files")),
        RuntimeError("ld: final link failed: No space left on device"),
    ],
)
def test_a_shortage_is_told_from_its_number_or_its_text(error: BaseException) -> None:
    assert is_shortage(error)


@pytest.mark.parametrize("error", [ValueError("a block has no such loop"), FileNotFoundError(errno.ENOENT, "none")])
def test_other_errors_are_none(error: BaseException) -> None:
    assert not is_shortage(error)
