"""Ranges of the values that a program computes, and the inputs that would cause undefined behaviour.

A program is defined if every index is in bounds, no divisor is zero, every shift is less than the number of bits of its
type, no sum of integers of 32 bits or more overflows, and every float that is cast to an integer is in the range of the
integer's type. Everything else is defined, and all kernels of a program agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm.ir import Call, TensorLoad
from tvm.tirx import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    LShift,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    RShift,
    Select,
    Sub,
)
from tvm_ffi import structural_equal

from devices.builds.checks.program_reading import ProgramReading
from devices.builds.checks.program_statements import MANTISSA_BITS, call_name, dtype_of
from devices.sketches.byte_operators import integer_dot, is_clamped

_CONDITIONS = (EQ, NE, LT, LE, GT, GE, And, Or)
_MONOTONE: dict[str, Callable[[float], float]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "nearbyint": round,
    "sqrt": math.sqrt,
}
_BOUNDED = {"tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "sin": (-1.0, 1.0), "cos": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}
# Loop variables are not tracked: they are assumed to be less than this.
_LOOP = 2**20
# Narrower integers wrap around in every kernel. Overflow of integers with this many bits or more is undefined in LLVM.
_WRAPS_BELOW = 32


@dataclass(frozen=True, slots=True)
class Interval:
    """Values from ``low`` to ``high``, both included."""

    low: float
    high: float
    nan: bool = False
    """True if NaN is among them."""
    zero: bool = True
    """False if 0 is not among the values, even if it is between ``low`` and ``high``."""

    def union(self, other: Interval | None) -> Interval:
        if other is None:
            return self
        return Interval(
            min(self.low, other.low), max(self.high, other.high), self.nan or other.nan, self.zero or other.zero
        )

    def within(self, low: float, high: float) -> bool:
        return not self.nan and self.low >= low and self.high <= high

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high and (value != 0 or self.zero)


_TRUTH = Interval(0, 1)


def range_of_type(dtype: str) -> Interval:
    """Return all values of a type."""
    if dtype in MANTISSA_BITS:
        return Interval(-math.inf, math.inf, nan=True)
    if dtype == "bool":
        return _TRUTH
    bits = tvm.DataType(dtype).bits
    return Interval(0, 2**bits - 1) if dtype.startswith("uint") else Interval(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


class RangeCheck:
    """Checks ``program`` for undefined behaviour, given ranges of its arguments."""

    def __init__(self, program: ProgramReading) -> None:
        self._program = program
        self._buffers: dict[int, Interval] = {}
        self._narrowed: list[tuple[Any, Interval]] = []  # loads whose value the current condition bounds
        self._faults: set[int] = set()

    def faults(self, given: Sequence[Interval]) -> set[int]:
        """Return the arguments whose ranges lead to undefined behaviour anywhere in the program."""
        program = self._program
        self._buffers = {arg.key: values for arg, values in zip(program.args, given, strict=True)}
        self._faults = set()
        outputs = {statement.target for statement in program.statements}
        for key in outputs:
            self._buffers.pop(key, None)
        for statement in program.statements:
            for index in statement.indices:
                self._of(index)
            values = self._of(statement.value)
            if values is None:
                continue
            if statement.terms:
                summed = Interval(
                    min(values.low * statement.terms, values.low),
                    max(values.high * statement.terms, values.high),
                    values.nan,
                )
                values = self._in_type(summed, statement.dtype, statement.value)
            self._buffers[statement.target] = values.union(self._buffers.get(statement.target))
        return self._faults

    def _blame(self, value: Any) -> None:
        self._faults |= self._program.sources(value)

    def _of(self, value: Any) -> Interval | None:
        """Return the range of an expression; None for a load from the statement's own target, whose range is not known
        yet."""
        match value:
            case IntImm() | FloatImm():
                number: float = value.value
                return Interval(number, number, math.isnan(number))
            case TensorLoad():
                return self._load(value)
            case Cast():
                return self._cast(value)
            case Select():
                return self._either(value.condition, value.true_value, value.false_value)
            case Call():
                return self._call(value)
            case Not():
                self._of(value.a)
                return _TRUTH
            case Add() | Sub() | Mul() | Div() | FloorDiv() | Mod() | FloorMod() | Max() | Min():
                return self._arithmetic(value)
            case LShift() | RShift():
                return self._shift(value.a, value.b, dtype_of(value))
            case BitwiseAnd() | BitwiseOr() | BitwiseXor():
                self._of(value.a), self._of(value.b)
                return range_of_type(dtype_of(value))
        if isinstance(value, _CONDITIONS):
            self._of(value.a), self._of(value.b)
            return _TRUTH
        return range_of_type(dtype_of(value)) if dtype_of(value) in MANTISSA_BITS else Interval(0, _LOOP)

    def _load(self, load: Any) -> Interval | None:
        for index, extent in zip(load.indices, load.source.shape, strict=True):
            if not self._program.sources(index):
                continue
            values = self._of(index)
            if values is None or not values.within(0, int(extent) - 1):
                self._blame(index)
        narrowed = [values for bounded, values in self._narrowed if structural_equal(bounded, load)]
        if narrowed:
            return narrowed[-1]
        made = self._program.inlined(load) if self._narrowed else load
        if not made.same_as(load):
            return self._of(made)
        return self._buffers.get(hash(load.source))

    def _cast(self, cast: Any) -> Interval | None:
        inner, dtype, given = self._of(cast.value), dtype_of(cast), dtype_of(cast.value)
        if inner is None:
            return None
        if dtype in MANTISSA_BITS:
            return replace(inner, zero=True) if given in MANTISSA_BITS else inner
        if dtype == "bool":
            return _TRUTH
        limits = range_of_type(dtype)
        if given not in MANTISSA_BITS:
            return inner if inner.within(limits.low, limits.high) else limits
        if inner.nan or not (inner.low > limits.low - 1 and inner.high < limits.high + 1):
            self._blame(cast.value)
            return limits
        return Interval(math.trunc(inner.low), math.trunc(inner.high))

    def _either(self, condition: Any, one: Any, other: Any) -> Interval | None:
        self._of(condition)
        condition = self._truth(condition)
        first = self._under(condition, one, holds=True)
        second = self._under(condition, other, holds=False)
        return first.union(second) if first is not None else second

    def _truth(self, condition: Any) -> Any:
        """Return the comparison behind a condition. The comparison may have been stored in a tensor whose element is
        compared with 0."""
        match condition:
            case LT() if isinstance(condition.a, IntImm) and int(condition.a.value) == 0:
                inner = condition.b
            case NE() if isinstance(condition.b, IntImm) and int(condition.b.value) == 0:
                inner = condition.a
            case _:
                inner = condition
        while isinstance(inner, Cast):
            inner = inner.value
        if dtype_of(inner) != "bool":
            return condition
        return self._program.inlined(inner) if isinstance(inner, TensorLoad) else inner

    def _under(self, condition: Any, value: Any, holds: bool) -> Interval | None:
        """Return the range of a value if a condition is true (``holds``) or false; None if it never is. Only a
        comparison of a load with a constant narrows the range."""
        bounded = None
        compares = isinstance(condition, LT | GE) and isinstance(condition.a, TensorLoad)
        if compares and isinstance(condition.b, IntImm):
            values, bound = self._load(condition.a), int(condition.b.value)
            below = isinstance(condition, LT) == holds
            if values is not None:
                low, high = (
                    (values.low, min(values.high, bound - 1)) if below else (max(values.low, bound), values.high)
                )
                if low > high:
                    return None  # never
                bounded = (condition.a, replace(values, low=low, high=high))
        if bounded is None:
            return self._of(value)
        self._narrowed.append(bounded)
        try:
            return self._of(value)
        finally:
            self._narrowed.pop()

    def _call(self, call: Any) -> Interval | None:
        name = call_name(call)
        dtype = dtype_of(call)
        if name == "if_then_else":
            return self._either(*call.args)
        if name in ("shift_left", "shift_right"):
            return self._shift(call.args[0], call.args[1], dtype)
        if is_clamped(call):
            inner, low, high = self._of(call.args[0]), *(float(bound.value) for bound in call.args[1:])
            if inner is None:
                return Interval(low, high)
            return Interval(low if inner.nan else min(max(inner.low, low), high), min(max(inner.high, low), high))
        dot = integer_dot(call)
        if dot is not None:
            for argument in call.args:
                self._of(argument)
            return Interval(*dot.range)
        ranges = [self._of(argument) for argument in call.args if hasattr(argument, "ty")]
        first = ranges[0] if ranges else None
        if first is not None and dtype in MANTISSA_BITS:
            if name in _BOUNDED:
                return Interval(
                    *_BOUNDED[name], nan=first.nan or (name in ("sin", "cos") and math.isinf(first.high - first.low))
                )
            if name in _MONOTONE and not (name == "sqrt" and first.low < 0):
                apply = _MONOTONE[name]
                low, high = (end if math.isinf(end) else apply(end) for end in (first.low, first.high))
                return Interval(low, high, first.nan)
            if name == "fabs":
                return Interval(0, max(-first.low, first.high), first.nan)
            if name == "exp":
                return Interval(0, math.exp(first.high) if first.high < 700 else math.inf, first.nan)
        return range_of_type(dtype)

    def _shift(self, value: Any, amount: Any, dtype: str) -> Interval:
        self._of(value)
        bits = self._of(amount)
        if bits is None or not bits.within(0, tvm.DataType(dtype).bits - 1):
            self._blame(amount)
        return range_of_type(dtype)

    def _arithmetic(self, value: Any) -> Interval | None:
        a, b, dtype = self._of(value.a), self._of(value.b), dtype_of(value)
        if isinstance(value, Max | Min):
            if a is None or b is None:
                return a if b is None else b
            choose = max if isinstance(value, Max) else min
            return Interval(choose(a.low, b.low), choose(a.high, b.high), a.nan or b.nan)
        if a is None or b is None:  # a recurrence of unknown length
            self._blame(value)
            return range_of_type(dtype)
        if dtype in MANTISSA_BITS:
            return _float_result(value, a, b)
        match value:
            case Add():
                return self._in_type(Interval(a.low + b.low, a.high + b.high), dtype, value)
            case Sub():
                return self._in_type(Interval(a.low - b.high, a.high - b.low), dtype, value)
            case Mul():
                ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
                return self._in_type(Interval(min(ends), max(ends)), dtype, value)
        if b.has(0):
            self._blame(value.b)
        if b.has(-1) and a.low == range_of_type(dtype).low < 0:
            self._blame(value.a)
        if isinstance(value, Div | FloorDiv):
            most = max(abs(a.low), abs(a.high))
            positive = a.low >= 0 and b.low >= 0
            return Interval(0 if positive else -most, most)
        most = max(abs(b.low), abs(b.high)) - 1
        floors = isinstance(value, FloorMod)
        return Interval(0 if (b.low >= 0 if floors else a.low >= 0) else -most, most)

    def _in_type(self, values: Interval, dtype: str, source: Any) -> Interval:
        """Return a range of integers, limited to their type. An overflow of a wide type is noted as a fault."""
        limits = range_of_type(dtype)
        if dtype in MANTISSA_BITS or values.within(limits.low, limits.high):
            return values
        if tvm.DataType(dtype).bits >= _WRAPS_BELOW:
            self._blame(source)
        return limits


def _float_result(value: Any, a: Interval, b: Interval) -> Interval:
    """Return the range of a sum, product or quotient of floats."""
    nan = a.nan or b.nan
    match value:
        case Add():
            ends = [a.low + b.low, a.high + b.high]
            nan |= (a.low == -math.inf and b.high == math.inf) or (a.high == math.inf and b.low == -math.inf)
        case Sub():
            ends = [a.low - b.high, a.high - b.low]
            nan |= (a.low == -math.inf == b.low) or (a.high == math.inf == b.high)
        case Mul():
            ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            for one, other in ((a, b), (b, a)):
                nan |= math.isinf(max(abs(one.low), abs(one.high))) and other.has(0)
        case Div() if not b.has(0):
            ends = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
            nan |= math.isinf(max(abs(a.low), abs(a.high))) and math.isinf(max(abs(b.low), abs(b.high)))
        case _:
            return Interval(-math.inf, math.inf, nan=True)
    known = [end for end in ends if not math.isnan(end)]
    if len(known) < len(ends):
        return Interval(-math.inf, math.inf, nan)
    return Interval(min(known), max(known), nan)
