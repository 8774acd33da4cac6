"""Progress of compiling networks, when the actors of the run have ended and cannot be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fleet_tune.base.results import Notice


class CompileProgress:
    """Progress of compiling. The thread that compiles writes it, and the thread that reports reads it.

    Args:
        elapsed_secs: seconds of the run when compiling begins.
        notices: notices of the run so far.
    """

    def __init__(self, elapsed_secs: float = 0.0, notices: Sequence[Notice] = ()) -> None:
        self.doing = ""
        """The present step."""
        self.notices = tuple(notices)
        """Notices of the run, and the warnings that were added since."""
        self.said: Callable[[str], None] | None = None
        """Is called with each step too."""
        self._began = time.monotonic() - elapsed_secs

    @property
    def elapsed_secs(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self._began

    def report_step(self, doing: str) -> None:
        """Set the present step."""
        self.doing = doing
        if self.said is not None:
            self.said(f"compiling: {doing}")

    def warn(self, text: str) -> None:
        """Add a notice."""
        number = self.notices[-1].number + 1 if self.notices else 1
        self.notices = (*self.notices, Notice(number, self.elapsed_secs, text))
