"""One schedule of a kernel, applied to the same kernel over fewer rows.

If a factor of a tile does not divide the remaining extent, TVM's ``SamplePerfectTile`` takes the whole remaining
extent: for 28 rows, a tile of 8 rows in registers would become one of 28. Here the largest divisor below the factor is
taken: 7. For powers of two TVM does the same.

For 14 rows, a tile of 4 rows in registers would become one of 2, half as fast as tiles of 8 rows, which can compute 14
rows too. Such a schedule does not fit (``must_fill``). For tiles of fewer rows that are a power of two, the schedule is
always kept. The divisors of a smaller power of two are divisors of a larger one too, so if such a tile fills the
registers badly, the tiles that would replace it do so too.
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
"""Least innermost factor for another extent, as a share of the original factor (or of that extent, if smaller)."""


class AppliedSchedule:
    """A schedule of a kernel, which can be applied to the kernel over fewer rows.

    Args:
        module: a module with the kernel as ``main``.
        trace: the trace of its schedule, as a record stores it.

    Raises :class:`devices.sketches.spaces.ScheduleError` if the trace does not fit the kernel.
    """

    def __init__(self, module: IRModule, trace: str) -> None:
        self._trace = replayed(module, trace).trace
        self._steps = json.loads(trace)[0]

    def of(self, module: IRModule, must_fill: bool = False) -> PrimFunc | None:
        """Return the same kernel over fewer rows, scheduled; None if the schedule does not fit it. ``must_fill``: see
        :meth:`schedule`."""
        try:
            return with_layout_changes(self.schedule(module, must_fill), module)["main"]
        except (ScheduleError, *REFUSALS):
            return None

    def schedule(self, module: IRModule, must_fill: bool = False) -> Schedule:
        """Return the schedule of the same kernel over fewer rows.

        Args:
            module: a module with the kernel over fewer rows as ``main``.
            must_fill: true to refuse innermost factors that get much smaller, because other tiles can compute these
                rows.

        Raises :class:`ScheduleError` and TVM's errors if the schedule does not fit.
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

    The innermost factor is the largest divisor that is not above the original one. Then from the inside outwards, the
    product of each factor and all factors inside it stays as near to the original product as possible. So a factor that
    gets smaller is compensated by the next ones, and not by the outermost loop, which reads the weights again in each
    iteration.
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
