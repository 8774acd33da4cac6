"""Draws of the scales and zero points among the arguments of a kernel, for its check.

If they were drawn like other floats, nearly every result would be the least or the greatest byte, and a wrong
intermediate value would not show. So they are drawn such that results spread over the levels of a byte:

    dequantize   (u - zero) * scale                      values in [-4, 4), where exponentials and erf tell values apart
    quantize     clip(round(x * inverse) + zero)         steps of a 32nd
    requantize   clip(round(sum * factor + offset))      the standard deviation of the sum is some 50 steps

Scales are powers of two, so that multiplication by them rounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tvm.ir import Call, TensorLoad
from tvm.tirx import Add, Cast, Mul, Sub

from devices.builds.checks.program_reading import ProgramReading
from devices.builds.checks.program_statements import ProgramStatement, calls_of, collected, dtype_of, loaded_buffers
from devices.protocol import InputDraw
from devices.sketches.byte_operators import integer_dot, is_clamped

_HALF = 128.0
_SCALE = 2.0**-5
_DEVIATION = 2.0**13.4
"""Standard deviation of the product of an unsigned and a signed byte, both uniform."""
_STEPS = 4
"""Number of distinct magnitudes of channel factors. With so few, products with sums of 22 bits are exact."""


@dataclass(frozen=True)
class QuantizationDraws:
    """The arguments that are scales, zero points or channel factors, with their draws."""

    numbers: dict[int, InputDraw]
    """Draws of scales and zero points, by argument. Each has one element, which always has the same value."""
    factors: dict[int, InputDraw]
    """Draws of channel factors, by argument."""
    dequantized: frozenset[int]
    """Arguments of bytes that are converted to floats, which are then all small."""
    steps: tuple[float, ...]
    """Step sizes of the results that are rounded."""

    def given(self, at: int, draw: InputDraw) -> InputDraw:
        """Return the draw of an argument: ``draw``, if the argument is none of these."""
        return self.numbers.get(at) or self.factors.get(at) or draw


def quantization_draws(program: ProgramReading) -> QuantizationDraws:
    """Return the draws of the scales, zero points and channel factors of a program."""
    numbers: dict[int, InputDraw] = {}
    factors: dict[int, InputDraw] = {}
    dequantized: set[int] = set()
    steps: set[float] = set()
    read = _Arguments(program)
    for statement in program.statements:
        for product in collected(statement.value, Mul):
            scale = read.number(product.b)
            byte = product.a.a if isinstance(product.a, Sub) else product.a
            if scale is not None and isinstance(byte, Cast) and dtype_of(byte.value) == "uint8":
                numbers[scale] = _always(_SCALE)
                dequantized |= loaded_buffers(byte)
                zero = read.number(product.a.b) if isinstance(product.a, Sub) else None
                if zero is not None:
                    numbers[zero] = _always(_HALF)
        for rounded in calls_of(statement.value, "round"):
            for product in collected(rounded, Mul):
                at = read.float_argument(product.b)
                if at is None or at in numbers:
                    continue
                if read.number(product.b) is not None:
                    numbers[at] = _always(1 / _SCALE)
                    steps.add(_SCALE)
                elif isinstance(product.a, Cast) and dtype_of(product.a.value) == "int32":
                    deviation = _DEVIATION * math.sqrt(read.terms(loaded_buffers(product.a)))
                    factors[at] = InputDraw(0.0, 2.0 ** math.floor(math.log2(_HALF / deviation)), _STEPS)
        for clamp in filter(is_clamped, collected(statement.value, Call)):
            value, low = clamp.args[0], float(clamp.args[1].value)
            zero = read.number(value.b) if isinstance(value, Add) else None
            if zero is not None:
                numbers[zero] = _always(low or _HALF)
    whole = frozenset(at for at, argument in enumerate(program.args) if argument.key in dequantized)
    return QuantizationDraws(numbers, factors, whole, tuple(sorted(steps)))


def _always(number: float) -> InputDraw:
    return InputDraw(0.0, number, steps=1, signed=False)


class _Arguments:
    """Finds the arguments that expressions of a program load from."""

    def __init__(self, program: ProgramReading) -> None:
        self._program = program
        self._at = {argument.key: at for at, argument in enumerate(program.args)}
        self._made: dict[int, list[ProgramStatement]] = {}
        for statement in program.statements:
            self._made.setdefault(statement.target, []).append(statement)

    def float_argument(self, value: Any) -> int | None:
        """Return the argument of floats that an expression loads from; None for any other expression."""
        at = self._at.get(hash(value.source)) if isinstance(value, TensorLoad) else None
        return at if at is not None and self._program.args[at].is_float else None

    def number(self, value: Any) -> int | None:
        """Return the argument that an expression loads from, if the argument is a single float; else None."""
        at = self.float_argument(value)
        return at if at is not None and math.prod(self._program.args[at].shape) == 1 else None

    def terms(self, buffers: Collection[int]) -> int:
        """Return the largest number of products of bytes in a sum that the buffers hold, directly or through other
        buffers."""
        most, seen, left = 1, set[int](), list(buffers)
        while left:
            for statement in self._made.get(left.pop(), ()):
                dots = [dot.terms for call in collected(statement.value, Call) if (dot := integer_dot(call))]
                most = max(most, statement.terms * max(dots, default=1))
                if statement.target not in seen:
                    seen.add(statement.target)
                    left += loaded_buffers(statement.value)
        return most
