"""Words for failures that become part of a measurement."""

from __future__ import annotations

MAX_DETAIL = 500


def last_line(error: BaseException) -> str:
    """Type and last line of an exception: TVM puts stacks and pages of code in front."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:MAX_DETAIL] if lines else 'no message'}"
