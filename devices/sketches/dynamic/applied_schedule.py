"""One schedule of a kernel, applied to the same kernel over fewer rows.

TVM's ``SamplePerfectTile`` makes a part of a tile whose factor does not divide what is left as large as that: a tile of
8 rows in registers would be one of 28. Here it is the largest divisor below the factor: 7. For powers of two TVM does
the same.

A tile of 4 rows in registers would be one of 2 for 14 rows, and half as fast as in tiles of 8 rows, which compute 14
rows too: such a schedule does not fit. Smaller powers of two have no divisor that a larger one has not: where a tile of
such a size fills the registers badly, those in its place would do so too, and it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule.instruction import Instruction
from tvm.tirx import PrimFunc

from devices.sketches.generation import REFUSALS
from devices.sketches.spaces import ScheduleError, fresh_schedule, replayed, with_layout_changes

_LEAST_FILLED = 0.75
"""Share of the innermost factor that another extent must leave."""


class AppliedSchedule:
    """A schedule of a kernel.

    Args:
        module: the kernel, as ``main``.
        trace: the trace of its schedule, as a record stores it.

    Raises :class:`devices.sketches.spaces.ScheduleError` where the trace does not fit the kernel.
    """

    def __init__(self, module: IRModule, trace: str) -> None:
        self._trace = replayed(module, trace).trace
        self._steps = json.loads(trace)[0]

    def of(self, module: IRModule, must_fill: bool = False) -> PrimFunc | None:
        """Return the same kernel over fewer rows, scheduled; None where the schedule does not fit it. ``must_fill``:
        see :meth:`schedule`."""
        try:
            return with_layout_changes(self.schedule(module, must_fill), module)["main"]
        except (ScheduleError, *REFUSALS):
            return None

    def schedule(self, module: IRModule, must_fill: bool = False) -> Schedule:
        """Return the schedule of the same kernel over fewer rows.

        Args:
            module: the kernel.
            must_fill: true if an innermost tile that gets much smaller does not fit: other tiles compute these rows.

        Raises :class:`ScheduleError` and TVM's errors where it does not fit.
        """
        fits = True

        def decide(step: Instruction, inputs: Sequence[Any], _attributes: Any, decision: Any) -> Any:
            nonlocal fits  # an error must not pass through TVM
            if step.kind.name != "SamplePerfectTile":
                return decision
            factors, extent = [int(each) for each in decision], int(schedule.get(inputs[0]).extent)
            fitting = fitting_factors(factors, extent)
            fits &= fitting[-1] >= _LEAST_FILLED * min(factors[-1], extent)
            return fitting

        schedule = fresh_schedule(module, self._steps)
        self._trace.apply_to_schedule(schedule, remove_postproc=False, decision_provider=decide)
        if must_fill and not fits:
            raise ScheduleError("an innermost tile is much smaller there")
        return schedule


def fitting_factors(factors: Sequence[int], extent: int) -> list[int]:
    """Return the factors of a tile for another extent.

    The innermost is the largest divisor that is not above the factor. From there on, the rows of each loop with all
    loops inside are as nearly as many as before: what does not fit one of them is not left to the outermost, which
    would read the weights once more for each of its iterations.
    """
    divisors = [each for each in range(1, extent + 1) if extent % each == 0]
    inside, before = max(each for each in divisors if each <= factors[-1]), factors[-1]
    result = [inside]
    for factor in reversed(factors[1:-1]):
        before *= factor
        goal = min(before, extent)
        chosen = min((max(each / goal, goal / each), each) for each in divisors if each % inside == 0)[1]
        result.append(chosen // inside)
        inside = chosen
    return [extent // inside, *reversed(result)]
