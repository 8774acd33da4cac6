"""Inputs and tolerances with which the kernels of a workload are checked.

On inputs as they are timed on (uniform floats) a wrong kernel can hide: of a sum of 4,096 terms in float16 the last one
is less than the rounding. So the inputs of a check are drawn such that every term of a sum counts:

- Where every term is a product of inputs (convolutions, matrix products, means), inputs are plus or minus one power of
  two. Then all partial sums are whole multiples of one number, and small enough (six standard deviations of a random
  walk) that no order of summation rounds: right kernels agree to the last bit, and a term that is missing or counts
  twice is off by a multiple of that number. The powers bring the sums to about 1, where what follows them (GELU, tanh)
  tells values apart. Long sums are thinned out by zeros to as many terms as the type can tell from one more
  (:data:`EXACT_TERMS`).
- Where terms are rounded (a sum of exponentials, a variance), most of them are made next to nothing, so that each of
  the few others (:data:`ROUNDED_TERMS`) is a share of the sum that is well above the rounding errors of right kernels.

So the tolerance follows from the type alone (:func:`devices.client.checking.tolerance`), and the inputs from the length
of the sums. Where few values of a reduced axis count, half of the values at its ends do: tiles end there, and mistakes
are made there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Call, TensorLoad
from tvm.tirx import Add, Cast, Div, FloatImm, IntImm, Max, Min, Mul, PrimFunc, Select, Sub, Var

from devices.builds.program_statements import (
    MANTISSA_BITS,
    accesses_of,
    calls_of,
    cast_types,
    divisors_of,
    dtype_of,
    loaded_buffers,
    makes_integers,
    program_statements,
    variables_of,
)
from devices.protocol import CheckPlan, InputDraw

EXACT_TERMS = {"float64": 2**16, "float32": 2**16, "float16": 2**16, "bfloat16": 2**10}
"""Most non-zero terms of a sum that is not rounded, by the narrowest type. A few times the square root of this must be
whole numbers of the type, and one more term must differ by more than the type's rounding."""
ROUNDED_TERMS = {"float64": 1024, "float32": 512, "float16": 32, "bfloat16": 16}
"""Terms of a rounded sum that count: one of them is several times :data:`devices.client.checking.ROUNDED`."""
# exp of it is negligible beside exp of values in [-1, 1), also after a scale of 1/4.
_FAR = -32.0
# Shorter axes have no ends that are drawn apart.
_LONG = 64
_SMALL_INTEGERS = 8
_PLAIN_FLOATS = 2.0
_PLAIN_STEPS = 32


@dataclass(frozen=True)
class _Grid:
    """Values that are multiples of 2**``low`` and at most 2**``high`` in magnitude."""

    high: float
    low: float
    centred: bool
    """True if they are as often negative as positive, so that their sums grow with the square root of their number."""

    def fits(self, dtype: str) -> bool:
        return self.high - self.low <= MANTISSA_BITS.get(dtype, 62)


def plan_of(func: PrimFunc) -> CheckPlan:
    """Return the plan for kernels that compute what ``func`` computes. ``func`` is unscheduled, its arguments are
    buffers."""
    return _Reading(func).plan()


class _Reading:
    """Analysis of an unscheduled function: which arguments every buffer follows from, and how."""

    def __init__(self, func: PrimFunc) -> None:
        self._args = [(hash(arg), tuple(int(n) for n in arg.shape), str(arg.dtype)) for arg in func.params]
        self._statements = list(program_statements(func))
        # For every buffer: the arguments that it follows from, the number of them that its values are products of, and
        # whether it contains an exponential.
        self._follows: dict[int, frozenset[int]] = {key: frozenset([at]) for at, (key, _, _) in enumerate(self._args)}
        self._degrees: dict[int, int] = {key: 1 for key, _, _ in self._args}
        self._exponential: set[int] = set()
        for statement in self._statements:
            before = self._follows.get(statement.target, frozenset())
            self._follows[statement.target] = before | self._sources(statement.value)
            self._degrees[statement.target] = self._degree(statement.value)
            if any(True for _ in calls_of(statement.value, "exp")) or self._exponential & loaded_buffers(
                statement.value
            ):
                self._exponential.add(statement.target)

    def plan(self) -> CheckPlan:
        written = [s.dtype for s in self._statements] + [
            dtype for s in self._statements for dtype in cast_types(s.value)
        ]
        floats = [dtype for dtype in MANTISSA_BITS if dtype in written]
        precision = floats[-1] if floats else ""
        sums = any(s.terms and s.dtype in MANTISSA_BITS for s in self._statements)
        draws = self._draws(precision, sums, exact=True)
        exact = self._sums_are_exact(draws, precision)
        if not exact:
            draws = self._draws(precision, sums, exact=False)
        rounds = any(makes_integers(s.value) for s in self._statements)
        return CheckPlan(precision, exact, sums, rounds, draws)

    # --- draws -------------------------------------------------------------------------------------------------------

    def _draws(self, precision: str, sums: bool, exact: bool) -> tuple[InputDraw, ...]:
        terms, factors, far = self._sums_over()
        ends = self._reduced_axes()
        draws = []
        for at, (key, shape, dtype) in enumerate(self._args):
            long = tuple(axis for axis in sorted(ends.get(key, ())) if shape[axis] >= _LONG)
            if dtype == "bool":
                draws.append(InputDraw(0, 2))
            elif dtype not in MANTISSA_BITS:
                draws.append(self._integers(at, dtype, at in terms))
            elif at not in terms:
                steps = _PLAIN_STEPS if exact and sums else 0
                draws.append(InputDraw(0.0, _PLAIN_FLOATS, steps, ends=() if sums else long))
            else:
                limit = (EXACT_TERMS if exact else ROUNDED_TERMS)[precision or dtype]
                counted = min(terms[at], limit)
                density = (counted / terms[at]) ** (1 / factors[at])
                sparse_ends = long if density < 1 else ()
                if exact:
                    power = 2.0 ** -round(math.log2(counted) / 2 / factors[at])
                    draws.append(InputDraw(0.0, power, 1, density, 0.0, sparse_ends))
                elif at in far:
                    draws.append(InputDraw(0.0, 1.0, 0, density, _FAR, sparse_ends))
                else:
                    draws.append(InputDraw(0.5, 1.0, 0, density, 0.0, sparse_ends))
        return tuple(draws)

    def _sums_over(self) -> tuple[dict[int, int], dict[int, int], set[int]]:
        """Return, for every argument that sums are made of, the length of the longest sum and the number of arguments
        that make one term; and the arguments in whose sums there are exponentials."""
        terms: dict[int, int] = {}
        factors: dict[int, int] = {}
        far: set[int] = set()
        for statement in self._statements:
            if not statement.terms:
                continue
            sources = self._sources(statement.value)
            floats = self._floats(sources)
            for at in sources:
                terms[at] = max(terms.get(at, 1), statement.terms)
                factors[at] = max(factors.get(at, 1), len(floats))
            if self._exponential & loaded_buffers(statement.value) or any(
                True for _ in calls_of(statement.value, "exp")
            ):
                far |= sources
        return terms, factors, far

    def _integers(self, at: int, dtype: str, summed: bool) -> InputDraw:
        """Return integers that are valid as indices and as divisors. Small types that are only added and multiplied get
        all values."""
        bounds = list(self._bounds(at))
        divides = any(at in self._sources(by) for s in self._statements for by in divisors_of(s.value))
        if summed and not bounds and not divides and dtype in ("int8", "uint8"):
            return InputDraw(-128, 128) if dtype == "int8" else InputDraw(0, 256)
        high = min([*bounds]) if bounds else min([_SMALL_INTEGERS, *(n for _, s, _ in self._args for n in s if n > 1)])
        return InputDraw(1, max(2, high)) if divides else InputDraw(0, max(1, high))

    def _bounds(self, at: int) -> Iterator[int]:
        """Yield the extents that the values of argument ``at`` index."""
        for statement in self._statements:
            for buffer, indices in [*accesses_of(statement.value), (None, statement.indices)]:
                for axis, index in enumerate(indices):
                    if at not in self._sources(index):
                        continue
                    shape = self._shape(statement.target if buffer is None else hash(buffer), buffer)
                    extent = shape[axis] if shape else _SMALL_INTEGERS
                    yield extent if self._is_as_given(index) else min(extent, _SMALL_INTEGERS)

    def _is_as_given(self, index: Any) -> bool:
        """Return true if an index is an argument's value, or that value clamped to the bounds. False for others: ``i +
        2`` may be out of bounds."""
        match index:
            case TensorLoad():
                made = [s.value for s in self._statements if s.target == hash(index.source)]
                return all(self._is_as_given(value) for value in made)
            case Cast():
                return self._is_as_given(index.value)
            case Max() | Min():
                return self._is_as_given(index.a) or self._is_as_given(index.b)
            case Select():  # i + extent where i is negative
                return self._is_as_given(index.true_value) or self._is_as_given(index.false_value)
            case Call() if getattr(index.op, "name", "").endswith("if_then_else"):
                return self._is_as_given(index.args[1]) or self._is_as_given(index.args[2])
        return False

    def _shape(self, key: int, buffer: Any) -> tuple[int, ...]:
        if buffer is not None:
            return tuple(int(n) for n in buffer.shape)
        return next((shape for other, shape, _ in self._args if other == key), ())

    def _reduced_axes(self) -> dict[int, set[int]]:
        """Return, for every buffer, the axes that are reduced, directly or in what is computed from it element by
        element."""
        reduced: dict[int, set[int]] = {}
        for statement in reversed(self._statements):
            later = {
                str(index.name)
                for axis, index in enumerate(statement.indices)
                if isinstance(index, Var) and axis in reduced.get(statement.target, ())
            }
            for buffer, indices in accesses_of(statement.value):
                for axis, index in enumerate(indices):
                    names = {str(variable.name) for variable in variables_of(index)}
                    if names & statement.axes or (isinstance(index, Var) and names & later):
                        reduced.setdefault(hash(buffer), set()).add(axis)
        return reduced

    # --- exactness ---------------------------------------------------------------------------------------------------

    def _sums_are_exact(self, draws: tuple[InputDraw, ...], precision: str) -> bool:
        """Return true if no sum is rounded, whatever its order: multiples and bounds are followed through all
        statements."""
        grids: dict[int, _Grid | None] = {}
        for (key, _, dtype), draw in zip(self._args, draws, strict=True):
            high = math.log2(max(abs(draw.low), abs(draw.high), 1e-30))
            if dtype in MANTISSA_BITS:
                low = math.log2(draw.high / draw.steps) if draw.steps else None
                grids[key] = None if low is None else _Grid(high, low, centred=True)
            else:
                grids[key] = _Grid(high, 0.0, centred=draw.low < 0)
        for statement in self._statements:
            grid = self._grid(statement.value, grids)
            is_float = statement.dtype in MANTISSA_BITS
            if statement.terms and self._degree(statement.value) > len(self._floats(self._sources(statement.value))):
                grid = None  # squares of one number and its opposite: all terms would be the same
            if statement.terms and grid is not None:
                counted = min(statement.terms, EXACT_TERMS[precision] if is_float else statement.terms)
                drift = min(statement.terms, 2 * counted)
                growth = math.log2(drift)
                if grid.centred:
                    growth = min(growth, math.log2(6) + 0.5 * math.log2(counted))
                grid = replace(grid, high=grid.high + growth)
            if statement.terms and is_float and (grid is None or not grid.fits(statement.dtype)):
                return False
            if grid is not None and not grid.fits(statement.dtype):
                grid = None
            grids[statement.target] = None if statement.selects and grid is None else grid
        return True

    def _grid(self, value: Any, grids: dict[int, _Grid | None]) -> _Grid | None:
        """Return the grid of an expression; None where it has none."""
        match value:
            case TensorLoad():
                return grids.get(hash(value.source))
            case IntImm() | FloatImm():
                return _constant(float(value.value))
            case Cast():
                inner = self._grid(value.value, grids)
                from_float = dtype_of(value.value) in MANTISSA_BITS
                to = dtype_of(value)
                return inner if inner and inner.fits(to) and (to in MANTISSA_BITS or not from_float) else None
            case Add() | Sub() | Max() | Min():
                a, b = self._grid(value.a, grids), self._grid(value.b, grids)
                if a is None or b is None:
                    return None
                added = isinstance(value, Add | Sub)
                return _Grid(max(a.high, b.high) + added, min(a.low, b.low), added and a.centred and b.centred)
            case Mul():
                a, b = self._grid(value.a, grids), self._grid(value.b, grids)
                if a is None or b is None:
                    return None
                apart = not self._sources(value.a) & self._sources(value.b)
                return _Grid(a.high + b.high, a.low + b.low, apart and (a.centred or b.centred))
            case Div():
                a, by = self._grid(value.a, grids), self._grid(value.b, grids)
                constant = isinstance(value.b, FloatImm) and by is not None and by.high == by.low
                return _Grid(a.high - by.high, a.low - by.high, a.centred) if a and by and constant else None
            case Select():
                return self._either(value.true_value, value.false_value, grids)
            case Call() if getattr(value.op, "name", "").endswith("if_then_else"):
                return self._either(value.args[1], value.args[2], grids)
        return None

    def _either(self, one: Any, other: Any, grids: dict[int, _Grid | None]) -> _Grid | None:
        a, b = self._grid(one, grids), self._grid(other, grids)
        return (
            None if a is None or b is None else _Grid(max(a.high, b.high), min(a.low, b.low), a.centred and b.centred)
        )

    def _sources(self, value: Any) -> frozenset[int]:
        """Return the arguments that an expression follows from."""
        return frozenset(at for key in loaded_buffers(value) for at in self._follows.get(key, ()))

    def _floats(self, sources: frozenset[int]) -> list[int]:
        return [at for at in sources if self._args[at][2] in MANTISSA_BITS]

    def _degree(self, value: Any) -> int:
        """Return the number of arguments that an expression is a product of; 0 where it is no polynomial (or a
        constant)."""
        match value:
            case TensorLoad():
                return self._degrees.get(hash(value.source), 1)
            case Cast():
                return self._degree(value.value)
            case Mul():
                return self._degree(value.a) + self._degree(value.b)
            case Add() | Sub() | Max() | Min():
                return max(self._degree(value.a), self._degree(value.b))
            case Select():
                return max(self._degree(value.true_value), self._degree(value.false_value))
            case Call() if getattr(value.op, "name", "").endswith("if_then_else"):
                return max(self._degree(value.args[1]), self._degree(value.args[2]))
        return 0


def _constant(value: float) -> _Grid | None:
    if not math.isfinite(value):
        return None
    numerator, denominator = abs(value).as_integer_ratio()
    if not numerator:
        return _Grid(-64.0, 64.0, centred=True)
    low = (numerator & -numerator).bit_length() - denominator.bit_length()
    return _Grid(math.log2(abs(value)), low, centred=False)
