"""Special values among the inputs of a check: NaN, infinities, zeros of both signs, subnormal, large and tiny numbers,
halves.

They are inputs of a second run. All outputs that are computed from a NaN or an infinity are lost for the check, so
there are few of them: about an eighth of the outputs depends on one.

- NaN is left out where it becomes an integer, and where the place of a maximum depends on it.
- Numbers of all magnitudes are left out if they are summed, because the order of a sum decides whether it overflows.
  They are left out too if a value that is rounded to an integer results from several operations, because it may then be
  rounded up or down. If a product is added to another value, they are limited such that the product stays finite: a
  fused instruction does not overflow between product and sum, and two instructions would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm.ir import TensorLoad
from tvm.tirx import Div, FloatImm, Mul

from devices.builds.checks.input_domains import LARGEST_EXPONENTS, Domain
from devices.builds.checks.program_reading import ProgramReading
from devices.builds.checks.program_statements import (
    MANTISSA_BITS,
    ProgramStatement,
    calls_of,
    collected,
    dtype_of,
    makes_integers,
)
from devices.builds.checks.quantization_draws import QuantizationDraws
from devices.protocol import InputDraw, SpecialDraw, SpecialRows

# Share of all outputs that special values may reach, because all outputs that depend on one become special.
_SHARE = 1 / 8
_MOST_SCALES = 4
_ROUNDING = ("floor", "ceil", "trunc", "round", "nearbyint")


def special_draws(
    program: ProgramReading,
    domains: Sequence[Domain],
    draws: Sequence[InputDraw],
    wide: Sequence[InputDraw],
    rows: Mapping[int, SpecialRows],
    reproducible: bool,
    degree: int,
    quantization: QuantizationDraws,
) -> tuple[SpecialDraw, ...]:
    """Return the inputs of the second run, by argument; empty if they equal the inputs of the first run.

    Args:
        program: the program.
        domains: the domain of each argument.
        draws: inputs of the first run.
        wide: draws with the largest integers, and with floats of the most digits.
        rows: axes of arguments along which rounded terms are summed. Some rows are special as a whole, because mistakes
            show only there: a softmax that does not subtract the maximum fails only for huge values, and a small number
            that is added to a variance matters only if the variance is small.
        reproducible: true if correct kernels agree to the last bit.
        degree: largest number of floats that a value is a product of.
        quantization: draws of scales and zero points, which stay as they are, since all results depend on them.
    """
    sums = any(s.points > 1 and s.dtype in MANTISSA_BITS and not _selects(s) for s in program.statements)
    everywhere = not sums and (reproducible or not any(_rounds(s.value) for s in program.statements))
    written = {statement.target for statement in program.statements}
    reached = {
        at: _reach(program, at)
        for at, arg in enumerate(program.args)
        if arg.is_float and arg.key not in written and domains[at].known and at not in quantization.numbers
    }
    sizes = {at: math.prod(program.args[at].shape) for at in reached}
    multiplied = {scale for s in program.statements for scale in _scales(s.value)}
    scales = tuple(sorted({*quantization.steps, *multiplied}))[:_MOST_SCALES]
    most = max(reached, key=lambda at: sizes[at] / reached[at], default=-1)
    found = []
    for at, (arg, domain, draw) in enumerate(zip(program.args, domains, draws, strict=True)):
        if at not in reached:
            found.append(SpecialDraw(draw if arg.is_float or not (everywhere or sums) else wide[at]))
            continue
        places = sizes[at] / reached[at] * _SHARE / 2
        number = max(round(places), int(at == most))
        nan = domain.values.nan and _keeps_nan(program, at)
        found.append(
            SpecialDraw(
                wide[at],
                nan=number if nan else 0,
                infinite=number if domain.infinite and (places >= 0.5 or not nan) else 0,
                signed=domain.values.low < 0,
                limit=_limit(arg.numbers, domain, 0 if reproducible else degree + 1) if everywhere else 0.0,
                ties=everywhere and reproducible,
                zeros=True,
                subnormal=not sums,
                rows=rows.get(at),
                scales=scales if everywhere and reproducible else (),
            )
        )
    return () if all(special == SpecialDraw(draw) for special, draw in zip(found, draws, strict=True)) else tuple(found)


def _limit(dtype: str, domain: Domain, factors: int) -> float:
    """Return the largest magnitude such that a product of ``factors`` numbers (constants count as one factor) stays
    finite, at most the largest value of the domain. With ``factors`` 0, there is no limit but the domain's."""
    high = domain.values.high
    return min(high, 2.0 ** (LARGEST_EXPONENTS[dtype] // factors)) if factors else high


def _scales(value: Any) -> Iterator[float]:
    """Yield the numbers whose multiples become whole or half numbers when floats are multiplied or divided by a
    constant."""
    for node in collected(value, Mul, Div):
        for constant in (node.a, node.b):
            if isinstance(constant, FloatImm) and 2.0**-20 < abs(constant.value) < 2.0**20:
                yield 1 / abs(constant.value) if isinstance(node, Mul) else abs(constant.value)


def _reach(program: ProgramReading, at: int) -> int:
    """Return the largest number of values of an argument that one computed value depends on."""
    return max((max(s.points, s.terms) for s in program.statements if at in program.sources(s.value)), default=1)


def _selects(statement: ProgramStatement) -> bool:
    return statement.selects or (statement.points > 1 and not statement.terms)


def _keeps_nan(program: ProgramReading, at: int) -> bool:
    """Return true if the result does not depend on the position of a NaN in an argument. Maxima and minima keep NaN
    (:mod:`devices.builds.passes.extremes`); other reductions, such as the search for the position of a maximum, may
    not."""
    return all(
        s.points == 1
        or s.terms
        or s.selects
        or at not in program.sources(s.value)
        or not any(dtype_of(load) in MANTISSA_BITS for load in collected(s.value, TensorLoad))
        for s in program.statements
    )


def _rounds(value: Any) -> bool:
    return makes_integers(value) or any(True for name in _ROUNDING for _ in calls_of(value, name))
