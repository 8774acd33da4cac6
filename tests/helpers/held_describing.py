"""``fleet-tune`` with a network whose first task is the last to be described, and not before a file is there:
``python -m tests.helpers.held_describing FILE ARGUMENTS``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from fleet_tune.cli import main as cli


def main(file: Path, arguments: list[str]) -> int:
    from devices.describing.cache import TaskDescription
    from devices.describing.describer import TaskDescriber
    from fleet_tune.runs.preparing import ready_tasks

    class Held(TaskDescriber):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._held: list[tuple[int, TaskDescription]] = []

        def __next__(self) -> tuple[int, TaskDescription]:
            try:
                answer = super().__next__()
                if answer[0] > 0:
                    return answer
                self._held.append(answer)
                return super().__next__()
            except StopIteration:
                while not self._closed and not file.exists():
                    time.sleep(0.05)
                if self._closed or not self._held:
                    raise
                return self._held.pop()

    ready_tasks.TaskDescriber = Held  # type: ignore[misc]
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
