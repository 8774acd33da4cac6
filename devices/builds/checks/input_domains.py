"""The largest domain of each input on which a program is defined.

Each argument starts with all values of its type. While :class:`devices.builds.checks.value_ranges.RangeCheck` finds
undefined behaviour, the largest of the domains that cause it is made smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm.ir import TensorLoad
from tvm.tirx import Mul

from devices.builds.checks.program_reading import SMALL_INTEGERS, Argument, ProgramReading
from devices.builds.checks.program_statements import MANTISSA_BITS, ProgramStatement, collected, divisors_of, shifts_of
from devices.builds.checks.value_ranges import Interval, RangeCheck, range_of_type
from devices.protocol import InputDraw

LARGEST_EXPONENTS = {"float64": 1023, "float32": 127, "float16": 15, "bfloat16": 127}
# Exponents of powers of two that bound the magnitudes of floats: the limits of integer types, and smaller ones.
_POWERS = (100, 64, 63, 48, 32, 31, 24, 16, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1, 0)
_LEAST_BITS = 3


@dataclass(frozen=True, slots=True)
class Domain:
    """Values that one argument may take."""

    values: Interval
    infinite: bool = False
    """True if the infinities are among the values."""
    known: bool = True
    """False if no domain was found on which the program is certainly defined. The values are then those of the smallest
    option."""


class InputDomains:
    """The domains of the arguments of ``program``."""

    def __init__(self, program: ProgramReading) -> None:
        self._program = program
        self._check = RangeCheck(program)

    @cached_property
    def found(self) -> tuple[Domain, ...]:
        """The largest domains, by argument."""
        options = [list(self._options(at, arg)) for at, arg in enumerate(self._program.args)]
        levels = [0] * len(options)
        while True:
            faults = self._check.faults([option[level].values for option, level in zip(options, levels, strict=True)])
            smaller = [at for at in faults if levels[at] + 1 < len(options[at])]
            if not smaller:
                break
            sizes = {at: _size(options[at][levels[at]].values) for at in smaller}
            for at in smaller:
                levels[at] += sizes[at] == max(sizes.values())
        domains = []
        for at, (option, level) in enumerate(zip(options, levels, strict=True)):
            chosen = option[level]
            domains.append(Domain(chosen.values, chosen.infinite, known=at not in faults))
        return tuple(domains)

    def _options(self, at: int, arg: Argument) -> Iterator[Domain]:
        if arg.is_float:
            yield from _floats(arg.numbers)
        elif arg.dtype == "bool":
            yield Domain(range_of_type("bool"))
        else:
            yield from self._integers(at, arg.dtype)

    def _integers(self, at: int, dtype: str) -> Iterator[Domain]:
        limits = range_of_type(dtype)
        signed = limits.low < 0
        program = self._program
        bounds = sorted(set(program.index_bounds(at)))
        divisors = [by for s in program.statements for by in divisors_of(s.value) if at in program.sources(by)]
        amounts = [by for s in program.statements for by in shifts_of(s.value) if at in program.sources(by)]
        zero = not (divisors and all(program.is_as_given(by) for by in divisors))

        def domain(low: float, high: float) -> Domain:
            return Domain(Interval(max(low, limits.low), min(high, limits.high), zero=zero))

        yield domain(limits.low, limits.high)
        if bounds:  # as indices: from the end and the beginning, or from the beginning only
            yield domain(-bounds[0], bounds[0] - 1)
            yield domain(0, bounds[0] - 1)
        elif amounts:
            for bits in (64, 32, 16, 8):
                yield domain(0, bits - 1)
        else:
            if signed:
                yield domain(-limits.high, limits.high)
            for bits in range(tvm.DataType(dtype).bits - signed - 1, _LEAST_BITS - 1, -1):
                yield domain(-(2**bits) if signed else 0, 2**bits - 1)
        if not bounds and any(_multiplies_up(s) and at in program.sources(s.value) for s in program.statements):
            yield Domain(Interval(-1, 1, zero=False)) if signed else domain(1, 1)
            return
        high = min([SMALL_INTEGERS, *bounds, *(n for arg in program.args for n in arg.shape if n > 1)])
        yield domain(1, max(2, high) - 1) if divisors else domain(0, max(1, high) - 1)


def _size(values: Interval) -> float:
    return max(abs(values.low), abs(values.high))


def _multiplies_up(statement: ProgramStatement) -> bool:
    """Return true for a product over all values along an axis."""
    return any(
        isinstance(each, TensorLoad) and hash(each.source) == statement.target
        for node in collected(statement.value, Mul)
        for each in (node.a, node.b)
    )


def integers_of(values: Interval, bits: int = 64) -> InputDraw:
    """Return the draw of integers in a range, limited to so many bits."""
    low, high = int(max(values.low, -(2**bits))), int(min(values.high, 2**bits - 1))
    # Larger integers cannot be encoded in messages.
    return InputDraw(low, high + 1 if high + 1 < 2**64 else 2.0**64, zero=values.zero)


def _floats(dtype: str) -> Iterator[Domain]:
    whole = range_of_type(dtype)
    yield Domain(whole, infinite=True)
    yield Domain(Interval(whole.low, whole.high), infinite=True)
    for low in (-1.0, 0.0):
        if not low:
            yield Domain(Interval(0.0, math.inf), infinite=True)
        for power in (LARGEST_EXPONENTS[dtype] + 1, *_POWERS):
            # (-1, 1) is skipped: a cast to an unsigned type would accept it, with 0 as the only result, before larger
            # ranges without negative values are tried.
            if power <= LARGEST_EXPONENTS[dtype] + 1 and (power or not low):
                high = _below(power, dtype)
                yield Domain(Interval(low * high, high))


def _below(power: int, dtype: str) -> float:
    """Return the largest number of the type below a power of two."""
    return math.ldexp(1 - 2.0 ** -MANTISSA_BITS[dtype], power)
