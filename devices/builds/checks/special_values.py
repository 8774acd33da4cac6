"""Special values among the inputs of a check: NaN, infinities, zeros of both signs, subnormal, large and tiny numbers,
halves.

They are inputs of a second run. A NaN or an infinity takes with it all that is computed from it, so they are few: about
an eighth of the outputs follows from one.

- NaN is left out where it becomes an integer, and where the place of a maximum depends on it.
- Numbers of all magnitudes are left out where they are summed: the order of a sum decides whether it overflows. They
  are left out too where a rounded value follows from several operations: it may be rounded up or down then. Where a
  product is added to something, they are only as large as keeps it finite: one instruction for both does not overflow
  between them.
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

# One special value poisons the outputs that follow from it: about this share of them all.
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
    """Return the inputs of the second run, by argument; none where they were those of the first, ``draws``. ``wide``:
    draws with the largest integers, and with floats of the most digits. ``rows``: the axes, by argument, along which
    what is rounded is summed: the largest exponent is subtracted before, and only if it is huge that makes a
    difference, and a small number added to a variance only if that is small. ``degree``: number of floats that a value
    is the product of, at most. ``quantization``: of which scales and zero
    points stay as they are, since all results follow from them."""
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
    """Return the largest number of a domain of which so many, and constants, can be multiplied. 0: none are."""
    high = domain.values.high
    return min(high, 2.0 ** (LARGEST_EXPONENTS[dtype] // factors)) if factors else high


def _scales(value: Any) -> Iterator[float]:
    """Yield the numbers by which floats are multiplied or divided: what makes halves of them is a multiple of one."""
    for node in collected(value, Mul, Div):
        for constant in (node.a, node.b):
            if isinstance(constant, FloatImm) and 2.0**-20 < abs(constant.value) < 2.0**20:
                yield 1 / abs(constant.value) if isinstance(node, Mul) else abs(constant.value)


def _reach(program: ProgramReading, at: int) -> int:
    """Return the largest number of values of an argument that one value is made of."""
    return max((max(s.points, s.terms) for s in program.statements if at in program.sources(s.value)), default=1)


def _selects(statement: ProgramStatement) -> bool:
    return statement.selects or (statement.points > 1 and not statement.terms)


def _keeps_nan(program: ProgramReading, at: int) -> bool:
    """Return true if the result does not depend on the place of a NaN. Maxima and minima keep it
    (:mod:`devices.builds.passes.extremes`); the search for the place of one may not."""
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
