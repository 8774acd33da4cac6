"""What is told while networks are compiled, when there are no actors left to ask."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fleet_tune.base.results import Notice


class CompileProgress:
    """Is told by the thread that works, and read by the one that reports.

    ``doing``: what is done just now. ``notices``: those of the run so far, and what was warned of since.
    ``elapsed_secs``: of the run, when this begins.
    """

    def __init__(self, elapsed_secs: float = 0.0, notices: Sequence[Notice] = ()) -> None:
        self.doing = ""
        self.notices = tuple(notices)
        self._began = time.monotonic() - elapsed_secs

    @property
    def elapsed_secs(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self._began

    def tell(self, doing: str) -> None:
        """What is done from now on."""
        self.doing = doing

    def warn(self, text: str) -> None:
        """A notice of the run."""
        number = self.notices[-1].number + 1 if self.notices else 1
        self.notices = (*self.notices, Notice(number, self.elapsed_secs, text))
