"""The dynamic extents of an attention, and how its work grows with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc, Var
from tvm.tirx.analysis import undefined_vars

from devices.sketches.nests import replaced
from devices.sketches.rules.attention.pattern import Attention, attention_of
from devices.sketches.rules.attention.rule import fits


@dataclass(frozen=True)
class AttentionExtents:
    """The dynamic extents of an attention whose number of rows or columns is dynamic."""

    attention: Attention
    batch: tuple[Var, ...]
    """Variables that occur only in the extents of samples and heads."""
    inner: tuple[Var, ...]
    """Variables in the numbers of rows and columns."""

    @classmethod
    def of(cls, kernel: PrimFunc) -> AttentionExtents | None:
        """Return the dynamic extents of a kernel; None if it is not an attention with a dynamic number of rows or
        columns."""
        found = attention_of(tvm.IRModule({"main": kernel}))
        inner = () if found is None else _variables([found.rows, found.columns])
        if found is None or not inner:
            return None
        batch = tuple(each for each in _variables(found.batch) if not any(each.same_as(other) for other in inner))
        return cls(found, batch, inner)

    def at_most(self, typical: Mapping[Var, int], most: int) -> dict[Var, int]:
        """Return the extents for tuning: one sample, and the typical rows and columns, limited to ``most``."""
        return {**dict.fromkeys(self.batch, 1), **{each: min(typical[each], most) for each in self.inner}}

    def repeats(self, typical: Mapping[Var, int], most: int) -> int:
        """Return the work at the typical extents as a multiple of the work at those of :meth:`at_most`, with the ratio
        of each extent rounded up; 0 if the rule "attention" does not apply to the typical extents."""
        rows, columns, *batch = self._sizes(typical)
        if not fits(rows, columns, self.attention.width):
            return 0
        return prod(map(_ratio, (rows, columns, *batch), self._sizes(self.at_most(typical, most))))

    def _sizes(self, extents: Mapping[Var, int]) -> list[int]:
        """Return the numbers of rows and columns and the extents of the batch axes, for these dynamic extents."""
        attention = self.attention
        return [_at(each, extents) for each in (attention.rows, attention.columns, *attention.batch)]


def _ratio(size: int, tuned: int) -> int:
    return ceil(size / tuned)


def _variables(sizes: Any) -> tuple[Var, ...]:
    found = [variable for size in sizes if not isinstance(size, int) for variable in undefined_vars(size)]
    return tuple(each for at, each in enumerate(found) if not any(each.same_as(before) for before in found[:at]))


def _at(size: Any, extents: Mapping[Var, int]) -> int:
    """Return the value of a size, which is a number or an expression, for these dynamic extents."""
    if isinstance(size, int):
        return size
    known = {each: tirx.const(extents[each], str(each.ty)) for each in undefined_vars(size)}
    return int(Analyzer().simplify(replaced(size, known)))
