"""Inputs for checking the kernels of a workload, and the properties that its tolerances follow from.

On the inputs that kernels are timed on (uniform floats), a wrong kernel may not be noticed: in a sum of 4,096 terms in
float16, one term is less than the rounding error. So the inputs of a check are drawn such that every term of a sum
counts:

- If every term is a product of inputs (convolutions, matrix products, means), inputs are plus or minus one power of
  two. Then all partial sums are multiples of one number, and small enough (six standard deviations of a random walk)
  that no order of summation rounds. So correct kernels agree to the last bit, and an error of one term, missing or
  counted twice, changes the sum by a multiple of that number. The powers are chosen such that sums are about 1, where
  functions of them (GELU, tanh) distinguish values. In long sums, many terms are zero: as many terms are left as the
  type can distinguish from one more (:data:`EXACT_TERMS`).
- If terms are rounded (a sum of exponentials, a variance), most of them are made negligible. Then each of the few
  others (:data:`ROUNDED_TERMS`) is a share of the sum that is well above the rounding errors of correct kernels.

So the tolerance follows from the type alone (:func:`devices.client.output_check.tolerance`), and the inputs follow from
the length of the sums. If only few values along a reduced axis count, half of the values at the ends of the axis do,
because tiles end there and mistakes are likely there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Call, TensorLoad
from tvm.tirx import Add, Cast, Div, FloatImm, IntImm, Max, Min, Mul, PrimFunc, Select, Sub, Var

from devices.builds.checks.input_domains import InputDomains, integers_of
from devices.builds.checks.program_reading import ProgramReading
from devices.builds.checks.program_statements import (
    MANTISSA_BITS,
    accesses_of,
    calls_of,
    cast_types,
    collected,
    dtype_of,
    loaded_buffers,
    makes_integers,
    variables_of,
)
from devices.builds.checks.quantization_draws import quantization_draws
from devices.builds.checks.reproducibility import compares_zeros, is_reproducible
from devices.builds.checks.special_values import special_draws
from devices.protocol import CheckPlan, InputDraw, SpecialRows
from devices.sketches.byte_operators import integer_dot
from devices.sketches.half_operators import is_dot2, is_pair

EXACT_TERMS = {"float64": 2**16, "float32": 2**16, "float16": 2**16, "bfloat16": 2**10}
"""Most non-zero terms of a sum that is not rounded, by the narrowest type. The type must represent all integers up to a
few times the square root of this, and one term must change the sum by more than the type's rounding error."""
ROUNDED_TERMS = {"float64": 1024, "float32": 512, "float16": 32, "bfloat16": 16}
"""Number of terms of a rounded sum that count. As a share of the sum, one of them is several times
:data:`devices.client.output_check.ROUNDED`."""
# exp(_FAR) is negligible compared with exp of values in [-1, 1), also if all are scaled by 1/4.
_FAR = -32.0
# Least extents of reduced axes whose ends are drawn separately: for sums, and for maxima and minima.
_LONG, _SHORT = 64, 8
# Bits of integers that become floats: an addend would be lost next to a huge number.
_SMALL_BITS, _PLAIN_BITS, _ALL_BITS = 3, 8, 64
_PAIR_BITS = 23
_PLAIN_FLOATS = 2.0
_PLAIN_STEPS = 32
_STEPS = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2)


@dataclass(frozen=True)
class _Grid:
    """Values that are multiples of 2**``low`` and at most 2**``high`` in magnitude."""

    high: float
    low: float
    centred: bool
    """True if the values are negative as often as positive, so that sums grow with the square root of the number of
    terms."""

    def fits(self, dtype: str) -> bool:
        return self.high - self.low <= MANTISSA_BITS.get(dtype, 62)


def plan_of(func: PrimFunc) -> CheckPlan:
    """Return the plan for checking kernels of ``func``, an unscheduled function whose arguments are buffers."""
    return _Reading(func).plan()


class _Reading:
    """Analysis of an unscheduled function: the arguments that every buffer depends on, and how."""

    def __init__(self, func: PrimFunc) -> None:
        self._program = ProgramReading(func)
        self._args = self._program.args
        self._statements = self._program.statements
        self._domains = InputDomains(self._program).found
        self._reproducible = is_reproducible(self._program)
        self._quantization = quantization_draws(self._program)
        # For every buffer: the number of floats that its values are products of, and whether it contains an
        # exponential.
        self._degrees: dict[int, int] = {
            arg.key: int(arg.is_float and at not in self._quantization.numbers) for at, arg in enumerate(self._args)
        }
        self._exponential: set[int] = set()
        for statement in self._statements:
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
        draws = self._exact_draws(precision, sums, _PLAIN_BITS)
        exact = draws is not None
        if draws is None:
            draws = self._draws(precision, sums, exact=False, bits=_SMALL_BITS)
        wide = self._wide_draws(precision, sums) or draws
        reproducible = is_reproducible(self._program, exact_sums=exact)
        rounds = not reproducible and any(makes_integers(s.value) for s in self._statements)
        rows = {} if exact else self._rows()
        degree = max(self._degrees.values(), default=1)
        return CheckPlan(
            precision,
            exact,
            sums,
            rounds,
            draws,
            special_draws(self._program, self._domains, draws, wide, rows, reproducible, degree, self._quantization),
            reproducible,
            reproducible and compares_zeros(self._program),
        )

    # --- draws -------------------------------------------------------------------------------------------------------

    def _exact_draws(self, precision: str, sums: bool, most: int) -> tuple[InputDraw, ...] | None:
        """Return inputs with which no sum is rounded; None if there are none. Integers that become floats have as many
        bits as this allows, at most ``most``."""
        integers = any(arg.dtype != "bool" and not arg.is_float for arg in self._args)
        for bits in range(most, _SMALL_BITS - 1, -1) if integers and sums else (most,):
            draws = self._draws(precision, sums, exact=True, bits=bits)
            if self._sums_are_exact(draws, precision):
                return draws
        return None

    def _wide_draws(self, precision: str, sums: bool) -> tuple[InputDraw, ...] | None:
        """Return the inputs with the most digits with which no sum is rounded; None if there are none. A kernel that
        sums in a narrower type than the program rounds such inputs."""
        draws = self._exact_draws(precision, sums, _ALL_BITS)
        if draws is None:
            return None
        for steps in _STEPS if any(draw.steps == 1 and draw.signed for draw in draws) else ():
            finer = tuple(replace(draw, steps=steps) if draw.steps == 1 and draw.signed else draw for draw in draws)
            if self._sums_are_exact(finer, precision):
                return finer
        return draws

    def _draws(self, precision: str, sums: bool, exact: bool, bits: int) -> tuple[InputDraw, ...]:
        """Return the draws of all inputs. ``exact``: true for draws whose sums are not rounded; ``bits``: bits of the
        magnitudes of integers that become floats."""
        terms, factors, far = self._sums_over()
        ends = self._reduced_axes()
        packed = self._packed()
        selects = not sums and any(s.points > 1 and not s.terms for s in self._statements)
        draws = []
        for at, (arg, domain) in enumerate(zip(self._args, self._domains, strict=True)):
            shape, dtype = arg.shape, arg.numbers
            reduced = sorted(ends.get(arg.key, ()))
            long = tuple(axis for axis in reduced if shape[axis] >= (_LONG if sums else _SHORT))
            chosen = tuple(reduced) if selects else ()
            if dtype not in MANTISSA_BITS:
                summed = sums and at in terms and (exact or dtype not in ("int8", "uint8"))
                plain = self._reproducible or not precision
                small = (summed or not plain) and at not in self._quantization.dequantized
                whole = bits if small else _ALL_BITS
                draw = integers_of(domain.values, packed.get(at, whole))
                draws.append(replace(draw, ends=long if selects else (), selected=chosen))
            elif at not in terms:
                steps = _PLAIN_STEPS if exact and sums else 0
                high, signed = _PLAIN_FLOATS, domain.values.low < 0
                if domain.known and domain.values.high < 2 * high:  # values at the ends are doubled
                    high = 2.0 ** (math.frexp(domain.values.high)[1] - 1)
                draw = InputDraw(0.0, high, steps, ends=() if sums else long, signed=signed)
                draws.append(replace(draw, selected=chosen))
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
        return tuple(self._quantization.given(at, draw) for at, draw in enumerate(draws))

    def _packed(self) -> dict[int, int]:
        """Return the bits to draw for integers that pack several numbers, by argument: they are not summed as integers.
        If two 16-bit numbers are packed, the upper one is limited to a byte, so that no sum is too large."""
        packed: dict[int, int] = {}
        for call in (call for statement in self._statements for call in collected(statement.value, Call)):
            dot = integer_dot(call)
            if dot is not None:
                packed |= dict.fromkeys(self._sources(call), _PAIR_BITS if dot.terms == 2 else _ALL_BITS)
        return packed

    def _rows(self) -> dict[int, SpecialRows]:
        """Return the axes of each argument along which floats are summed."""
        terms, _, far = self._sums_over()
        ends = self._reduced_axes()
        axes = {at: tuple(sorted(ends.get(self._args[at].key, ()))) for at in terms if self._args[at].is_float}
        return {at: SpecialRows(along, at in far) for at, along in axes.items() if along}

    def _sums_over(self) -> tuple[dict[int, int], dict[int, int], set[int]]:
        """Return two maps for all arguments that are summed, to the length of the longest sum and to the largest number
        of float arguments in a term; and the set of arguments in sums of exponentials."""
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

    def _reduced_axes(self) -> dict[int, set[int]]:
        """Return, for every buffer, the axes that are reduced, either directly or in a buffer that is computed from it
        element by element."""
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
                    if names & statement.axes or names & later:
                        reduced.setdefault(hash(buffer), set()).add(axis)
        return reduced

    # --- exactness ---------------------------------------------------------------------------------------------------

    def _sums_are_exact(self, draws: tuple[InputDraw, ...], precision: str) -> bool:
        """Return true if no sum is rounded in any order of its terms. The grids of values (:class:`_Grid`) are tracked
        through all statements."""
        grids: dict[int, _Grid | None] = {}
        for arg, draw in zip(self._args, draws, strict=True):
            key, dtype = arg.key, arg.numbers
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
                grid = None  # squares of a number or its opposite: all terms would be equal
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
        """Return the grid of an expression; None if it has none."""
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
            case Call() if is_dot2(value):
                a, b = (self._grid(operand, grids) for operand in value.args)
                if a is None or b is None:
                    return None
                return _Grid(a.high + b.high, a.low + b.low, a.centred or b.centred)
            case Call() if is_pair(value):
                return self._either(value.args[0], value.args[1], grids)
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
        return self._program.sources(value)

    def _floats(self, sources: frozenset[int]) -> list[int]:
        return [at for at in self._program.floats(sources) if at not in self._quantization.numbers]

    def _degree(self, value: Any) -> int:
        """Return the degree of an expression as a polynomial of the arguments; 0 for a constant, and if it is not a
        polynomial."""
        match value:
            case TensorLoad():
                return self._degrees.get(hash(value.source), 1)
            case Cast():
                return self._degree(value.value)
            case Mul():
                return self._degree(value.a) + self._degree(value.b)
            case Call() if is_dot2(value):
                return sum(self._degree(operand) for operand in value.args)
            case Call() if is_pair(value):
                return max(self._degree(operand) for operand in value.args)
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
