"""The child process of :mod:`devices.describing.describer`: makes and describes the sketches of one task at a time.

Run as ``python -m devices.describing.worker``. A request names a task and the sketch to begin with. The answers:
``failed`` (why the task has no sketches) alone, or ``opened`` (all sketches, as far as they are needed for scheduling)
with ``left_out``, then ``described`` for each sketch from that one on, in order.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from devices.host import warm_child
from devices.host.child import Channel
from devices.host.memory import resident_bytes
from devices.protocol import decode_task
from fleet_tune.records.dataset_codec import encode_sketches

TASK_SECS = 30.0
"""Seconds of processor time after which no further sketch of a task is described."""


def main() -> None:
    channel, requests = warm_child.opened()
    import devices.sketches.spaces  # noqa: F401 - slow to import: this process is ready when it has done so

    channel.send({"ready": True})
    while True:
        answer(channel, requests.get())


def answer(channel: Channel, request: dict[str, Any]) -> None:
    """Make and describe the sketches of one request."""
    from devices.sketches.generation import first_line
    from devices.sketches.spaces import DesignSpace

    started = time.thread_time()
    try:
        space = DesignSpace(decode_task(request["task"]))
    except Exception as error:  # one task that TVM cannot read must not end the run of all others
        channel.send({"failed": first_line(error), "resident_bytes": resident_bytes()})
        return
    opened = space.undescribed
    channel.send({"opened": encode_sketches(opened), "left_out": [list(each) for each in space.left_out]})
    for at in range(request["first"], len(opened)):
        late = time.thread_time() - started > TASK_SECS
        sketch = left_undescribed(opened[at]) if late else space.described(at)
        channel.send({"described": encode_sketches([sketch]), "resident_bytes": resident_bytes()})


def left_undescribed(sketch: Any) -> Any:
    """``sketch`` where there is no time to describe it: one without combinations of places is described already."""
    if sketch.statements:
        return sketch
    return replace(sketch, undescribed=f"the descriptions of its task take more than {TASK_SECS:g} s")


if __name__ == "__main__":
    main()
