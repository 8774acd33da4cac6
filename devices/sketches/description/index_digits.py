"""Index expressions as sums of digits of axes.

After fusing and layout changes, a buffer is indexed by quotients and remainders of an axis: ``A[i // 64, i % 64]``. A
*digit* ``(axis, divisor, extent)`` stands for ``axis // divisor % extent``; an index is a sum of digits times
constants. All digits of an axis that a block uses are refined to one sequence
(:attr:`fleet_tune.base.sketch.Axis.digits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from tvm.tirx import Add, Cast, FloorDiv, FloorMod, IntImm, Min, Mul, Sub, Var

from fleet_tune.base.sketch import Axis

Digit = tuple[int, int, int]
Terms = dict[Digit, int]
Rows = tuple[tuple[int, ...], ...]


def terms_of(expression: Any, variables: Sequence[Var], axes: Sequence[Axis]) -> Terms | None:
    """Return the coefficient of every digit in an index, without the constant; None if the index is not a sum of
    digits."""
    total = _sum(expression, variables, axes)
    return None if total is None else total[0]


def index_rows(axes: Sequence[Axis], accesses: Sequence[Sequence[Terms]]) -> tuple[tuple[Axis, ...], list[Rows]] | None:
    """Return the axes with their digits, and every access' coefficients of all digits of all axes.

    Returns None if the digits of an axis do not divide each other.
    """
    cuts: list[set[int]] = [{1} for _ in axes]
    for rows in accesses:
        for terms in rows:
            for at, divisor, extent in terms:
                cuts[at] |= {cut for cut in (divisor, divisor * extent) if cut < axes[at].extent}
    digits: list[list[tuple[int, int]]] = []  # of each axis, from the slowest: divisor and extent
    for axis, divisors in zip(axes, cuts, strict=True):
        ascending = sorted(divisors)
        if any(b % a for a, b in pairwise(ascending)):
            return None
        upper = [*ascending[1:], 0]
        digits.append([(a, b // a if b else -(-axis.extent // a)) for a, b in zip(ascending, upper, strict=True)][::-1])
    indexed = [tuple(_row(terms, digits) for terms in rows) for rows in accesses]
    named = tuple(
        replace(axis, digits=tuple(extent for _, extent in of_axis) if len(of_axis) > 1 else ())
        for axis, of_axis in zip(axes, digits, strict=True)
    )
    return named, indexed


def _row(terms: Terms, digits: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, ...]:
    row = []
    for owner, of_axis in enumerate(digits):
        for divisor, _ in of_axis:
            row.append(
                sum(
                    coefficient * (divisor // low)
                    for (at, low, extent), coefficient in terms.items()
                    if at == owner and low <= divisor < low * extent
                )
            )
    return tuple(row)


def _sum(expression: Any, variables: Sequence[Var], axes: Sequence[Axis]) -> tuple[Terms, int] | None:
    """Return the coefficients of digits, and the constant."""
    if isinstance(expression, IntImm):
        return {}, int(expression.value)
    if isinstance(expression, Cast):
        return _sum(expression.value, variables, axes)
    for axis, variable in enumerate(variables):
        if variable.same_as(expression):
            extent = axes[axis].extent
            return ({(axis, 1, extent): 1} if extent > 1 else {}), 0
    if isinstance(expression, Add | Sub):
        first, second = _sum(expression.a, variables, axes), _sum(expression.b, variables, axes)
        if first is None or second is None:
            return None
        sign = 1 if isinstance(expression, Add) else -1
        terms = dict(first[0])
        for digit, coefficient in second[0].items():
            terms[digit] = terms.get(digit, 0) + sign * coefficient
        return {digit: c for digit, c in terms.items() if c}, first[1] + sign * second[1]
    if isinstance(expression, Mul | FloorDiv | FloorMod):
        return _scaled(expression, variables, axes)
    if isinstance(expression, Min) and isinstance(expression.b, IntImm):
        # The last of overlapping tiles begins earlier.
        return _sum(expression.a, variables, axes)
    return None


def _scaled(expression: Any, variables: Sequence[Var], axes: Sequence[Axis]) -> tuple[Terms, int] | None:
    a, b = expression.a, expression.b
    if isinstance(expression, Mul) and isinstance(a, IntImm):
        a, b = b, a
    inner = _sum(a, variables, axes) if isinstance(b, IntImm) else None
    if inner is None:
        return None
    factor = int(b.value)
    terms, constant = inner
    if isinstance(expression, Mul):
        return {digit: c * factor for digit, c in terms.items()}, constant * factor
    if factor < 1:
        return None
    multiples = {digit: c for digit, c in terms.items() if c % factor == 0}
    rest = {digit: c for digit, c in terms.items() if c % factor}
    if constant % factor == 0 and len(rest) == 1:
        ((axis, divisor, extent), coefficient) = next(iter(rest.items()))
        if coefficient == 1 and extent > factor:
            # One digit is cut in two.
            high = (axis, divisor * factor, -(-extent // factor))
            if isinstance(expression, FloorDiv):
                return {**_divided(multiples, factor), high: 1}, constant // factor
            return {(axis, divisor, factor): 1}, 0
    low = constant % factor
    if any(c < 0 for c in rest.values()) or low + sum(c * (d[2] - 1) for d, c in rest.items()) >= factor:
        return None
    if isinstance(expression, FloorDiv):
        return _divided(multiples, factor), constant // factor
    return rest, low


def _divided(terms: Terms, factor: int) -> Terms:
    return {digit: c // factor for digit, c in terms.items()}


def digit_extents(axis: Axis) -> tuple[int, ...]:
    """Return the digits of an axis; a plain axis is its own only digit."""
    return axis.digits or (axis.extent,)


def fused_axis(members: Sequence[Axis]) -> Axis:
    """Return the axis of loops over ``members`` that were fused, from the slowest."""
    return Axis(
        "_".join(axis.name for axis in members),
        prod(axis.extent for axis in members),
        all(axis.reduction for axis in members),
        tuple(digit for axis in members for digit in digit_extents(axis)),
    )
