"""The child process of :mod:`devices.describing.describer`: makes and describes the sketches of one task at a time.

Run as ``python -m devices.describing.worker``. The answer to a request with a ``task`` contains ``failed`` (the reason
why the task has no sketches), or ``opened`` (all its sketches, described only as far as scheduling needs it) and
``left_out``. After that, a request ``describe`` with the number of a sketch is answered with ``described``. Between
requests the child is idle.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from devices.host import warm_child
from devices.host.limits.memory import resident_bytes
from devices.protocol import decode_task
from fleet_tune.base.records.datasets.dataset_codec import encode_sketches
from fleet_tune.base.sketch import Sketch

if TYPE_CHECKING:  # slow to import: it loads TVM
    from devices.sketches.spaces import DesignSpace

TASK_SECS = 30.0
"""Seconds of processor time for a task, after which no further sketch is described."""


def main() -> None:
    channel, requests = warm_child.connect_to_parent()
    import devices.sketches.spaces  # noqa: F401 - slow to import: this process is ready when it has done so

    channel.send({"ready": True})
    one = TaskSession()
    while True:
        request = requests.get()
        channel.send(one.opened(request["task"]) if "task" in request else one.described(request["describe"]))


class TaskSession:
    """Answers the requests about the current task."""

    def __init__(self) -> None:
        self._space: DesignSpace | None = None
        self._started = 0.0

    def opened(self, task: dict[str, Any]) -> dict[str, Any]:
        """Make the sketches of a task, which becomes the current one, and return the answer."""
        from devices.sketches.generation import first_line
        from devices.sketches.spaces import DesignSpace

        self._started = time.thread_time()
        try:
            self._space = DesignSpace(decode_task(task))
            left_out = [list(each) for each in self._space.left_out]
            return {"opened": encode_sketches(self._space.undescribed), "left_out": left_out}
        except Exception as error:  # a task that TVM cannot read must not end the descriptions of all others
            return {"failed": first_line(error), "resident_bytes": resident_bytes()}

    def described(self, at: int) -> dict[str, Any]:
        """Describe the sketch with the index ``at``, unless the time is over, and return the answer."""
        assert self._space is not None
        late = time.thread_time() - self._started > TASK_SECS
        sketch = left_undescribed(self._space.undescribed[at]) if late else self._space.described(at)
        return {"described": encode_sketches([sketch]), "late": late, "resident_bytes": resident_bytes()}


def left_undescribed(sketch: Sketch) -> Sketch:
    """Return ``sketch`` as it is if there is no time to describe it further. A sketch without combinations of places is
    described already, but not over fewer rows; any other is marked as undescribed."""
    if sketch.described:
        return sketch
    return replace(sketch, undescribed=f"the descriptions of its task take more than {TASK_SECS:g} s")


if __name__ == "__main__":
    main()
