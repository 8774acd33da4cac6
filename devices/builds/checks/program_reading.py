"""An unscheduled function, read for its check: the arguments that every buffer depends on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm.ir import Call, TensorLoad
from tvm.tirx import Cast, Max, Min, PrimFunc, Select, Var
from tvm_ffi import structural_map

from devices.builds.checks.program_statements import (
    MANTISSA_BITS,
    ProgramStatement,
    accesses_of,
    loaded_buffers,
    program_statements,
)
from devices.sketches.half_operators import PAIRED, holding_pairs

SMALL_INTEGERS = 8
"""Integers below this are assumed to be valid if nothing is known about them."""


@dataclass(frozen=True)
class Argument:
    """One argument of the function."""

    key: int
    """Hash of its buffer."""
    shape: tuple[int, ...]
    dtype: str
    holds: str = ""
    """Float type of the numbers that are packed in pairs into elements; empty if each element is one number."""

    @property
    def numbers(self) -> str:
        """Type of the numbers in the argument, packed or not."""
        return self.holds or self.dtype

    @property
    def is_float(self) -> bool:
        return self.numbers in MANTISSA_BITS


class ProgramReading:
    """The statements of ``func``, an unscheduled function whose arguments are buffers."""

    def __init__(self, func: PrimFunc) -> None:
        self.statements: list[ProgramStatement] = list(program_statements(func))
        paired = {hash(buffer) for buffer in holding_pairs(func.body)}
        self.args = [
            Argument(
                hash(arg),
                tuple(int(n) for n in arg.shape),
                str(arg.dtype),
                PAIRED if hash(arg) in paired else "",
            )
            for arg in func.params
        ]
        # The arguments that each buffer depends on.
        self._follows: dict[int, frozenset[int]] = {arg.key: frozenset([at]) for at, arg in enumerate(self.args)}
        for statement in self.statements:
            before = self._follows.get(statement.target, frozenset())
            self._follows[statement.target] = before | self.sources(statement.value)

    def sources(self, value: Any) -> frozenset[int]:
        """Return the arguments that an expression depends on."""
        return frozenset(at for key in loaded_buffers(value) for at in self._follows.get(key, ()))

    def floats(self, sources: frozenset[int]) -> list[int]:
        return [at for at in sources if self.args[at].is_float]

    def index_bounds(self, at: int) -> Iterator[int]:
        """Yield the extents of the axes that are indexed by values of argument ``at``."""
        for statement in self.statements:
            for buffer, indices in [*accesses_of(statement.value), (None, statement.indices)]:
                for axis, index in enumerate(indices):
                    if at not in self.sources(index):
                        continue
                    shape = self._shape(statement.target if buffer is None else hash(buffer), buffer)
                    extent = shape[axis] if shape else SMALL_INTEGERS
                    yield extent if self.is_as_given(index) else min(extent, SMALL_INTEGERS)

    def is_as_given(self, index: Any) -> bool:
        """Return true if an expression is an argument's value, possibly cast, clamped, or with negative indices counted
        from the end. False for others: ``i + 2`` may be out of bounds."""
        match index:
            case TensorLoad():
                made = [s.value for s in self.statements if s.target == hash(index.source)]
                return all(self.is_as_given(value) for value in made)
            case Cast():
                return self.is_as_given(index.value)
            case Max() | Min():
                return self.is_as_given(index.a) or self.is_as_given(index.b)
            case Select():  # i + extent for a negative i
                return self.is_as_given(index.true_value) or self.is_as_given(index.false_value)
            case Call() if getattr(index.op, "name", "").endswith("if_then_else"):
                return self.is_as_given(index.args[1]) or self.is_as_given(index.args[2])
        return False

    def inlined(self, load: Any) -> Any:
        """Return the expression that computes a loaded value; the load itself if there is no single such expression."""
        made = [s for s in self.statements if s.target == hash(load.source)]
        if len(made) != 1 or made[0].points > 1 or not all(isinstance(index, Var) for index in made[0].indices):
            return load
        at = dict(zip((str(index.name) for index in made[0].indices), load.indices, strict=True))
        return structural_map(made[0].value, (Var, lambda variable: at.get(str(variable.name), variable)))

    def _shape(self, key: int, buffer: Any) -> tuple[int, ...]:
        if buffer is not None:
            return tuple(int(n) for n in buffer.shape)
        return next((arg.shape for arg in self.args if arg.key == key), ())
