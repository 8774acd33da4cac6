"""The command line in this process: as a user's call, without loading everything and starting Ray once more."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

from fleet_tune.cli import main as cli


@dataclass(frozen=True)
class Done:
    """The end of a command, and its output."""

    returncode: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """Return the last line of its output with ``--json``; fail where the command failed."""
        assert self.returncode == 0, self.stderr
        answer: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return answer


def fleet_tune_here(*arguments: str) -> Done:
    """Run ``fleet-tune`` with these arguments. It uses the Ray cluster that this process is connected to."""
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        code = cli.main(list(arguments))
    return Done(code, stdout.getvalue(), stderr.getvalue())
