"""exp, erf, sigmoid and small powers as float32 arithmetic that LLVM vectorises.

TVM lowers these functions to LLVM's intrinsics and to calls of the C library, which process one number at a time: a
softmax spends nine tenths of its time there. Functions that TVM expresses by exp (tanh, GELU, SiLU) become arithmetic
too.

Accuracy, against float64: exp within 2e-7 of its value; results below 1.2e-38 are zero. erf within 6e-7, sigmoid within
2e-7. NaN and infinities follow IEEE 754. Numbers of 16 bits are computed as float32; exp and erf of float64 stay TVM's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm.tirx import Broadcast, FloatImm, Select, const

_RULE = "llvm.FLowerIntrinsic"
_BEFORE_TVMS = 99  # priority: TVM's own rules have 10
# exp(r) for r <= log(2) / 2: the polynomial of degree 6 with the smallest relative error, 2e-9.
_EXP = (
    1.0000000005541891,
    1.0000000363231216,
    0.4999999207949004,
    0.16666420170086885,
    0.0416682256425744,
    0.008374815790242953,
    0.0013836841929442977,
)
# log(2) in two parts. The product of the first with an integer of few bits is exact.
_LOG2_HIGH = 355 / 512
_LOG2_LOW = math.log(2) - _LOG2_HIGH
_LEAST, _MOST = -87.33654, 88.72283  # between them exp is a normal number
_ROUNDS = 1.5 * 2**23  # added to a number of less than 22 bits, it rounds it: the last bits are the nearest integer
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf(x) = 1 - (a1 t + ... + a5 t^5) exp(-x^2) with
# t = 1 / (1 + p x) for x >= 0, within 1.5e-7.
_ERF_P = 0.3275911
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_PRODUCTS = (2.0, 3.0, 4.0)
"""Exponents of powers that are computed as products."""


@functools.cache
def use_vector_math() -> None:
    """Use this arithmetic in all kernels that this process builds for CPUs."""
    for name, rule in (("tirx.exp", _exp), ("tirx.erf", _erf), ("tirx.sigmoid", _sigmoid)):
        op = tvm.ir.Op.get(name)
        tvm.ir.register_op_attr(name, _RULE, _lowering(rule, _rule_of(op)), _BEFORE_TVMS)
    op = tvm.ir.Op.get("tirx.pow")
    tvm.ir.register_op_attr("tirx.pow", _RULE, _power(_rule_of(op)), _BEFORE_TVMS)


def _rule_of(op: Any) -> Callable[[Any], Any]:
    """Return TVM's lowering rule for a function."""
    names = (_RULE, "default.FLowerIntrinsic", "default.FLegalize")
    rule: Callable[[Any], Any] = next(rule for rule in map(op.get_attr, names) if rule is not None)
    return rule


def _power(others: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the lowering rule for powers: products for the constant exponents :data:`_PRODUCTS`, else ``others``."""

    def lowered(call: Any) -> Any:
        base, exponent = call.args
        if isinstance(exponent, Broadcast):
            exponent = exponent.value
        dtype = _dtype(call)
        if not isinstance(exponent, FloatImm) or exponent.value not in _PRODUCTS or "vscale" in dtype:
            return others(call)
        wide = base.astype(dtype.replace("bfloat16", "float32").replace("float16", "float32"))
        return functools.reduce(lambda product, _: product * wide, range(int(exponent.value) - 1), wide).astype(dtype)

    return lowered


def _lowering(rule: Callable[[Any], Any], others: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a lowering rule: ``rule`` for float32 and 16-bit floats, ``others`` for other types and for vectors of
    unknown length."""

    def lowered(call: Any) -> Any:
        dtype = _dtype(call)
        if "vscale" in dtype or not dtype.startswith(("float32", "float16")):
            return others(call)
        return rule(call.args[0].astype(dtype.replace("float16", "float32"))).astype(dtype)

    return lowered


def _dtype(value: Any) -> str:
    return str(tvm.DataType(str(value.ty)))


def _exp(x: Any) -> Any:
    dtype = _dtype(x)
    least, most = const(_LEAST, dtype), const(_MOST, dtype)
    # Both comparisons are false for NaN.
    return Select(x < least, const(0.0, dtype), Select(x > most, const(math.inf, dtype), _bounded_exp(x)))


def _sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)). Below the least value of exp(-x), its value does not change the sum."""
    dtype = _dtype(x)
    one, most = const(1.0, dtype), const(_MOST, dtype)
    opposite = const(0.0, dtype) - x
    return one / (one + Select(opposite > most, const(math.inf, dtype), _bounded_exp(opposite)))


def _bounded_exp(x: Any) -> Any:
    """Return exp(x) as 2^n exp(r) with x = n log(2) + r. ``x`` is clamped such that the result is a normal number."""
    dtype = _dtype(x)
    integer = dtype.replace("float32", "int32")

    def number(value: float) -> Any:
        return const(value, dtype)

    # In this order of operands, NaN stays NaN.
    bounded = tvm.tirx.max(number(_LEAST), tvm.tirx.min(number(_MOST), x))
    shifted = bounded * number(1 / math.log(2)) + number(_ROUNDS)  # the last bits are n
    power = shifted - number(_ROUNDS)
    rest = bounded - power * number(_LOG2_HIGH) - power * number(_LOG2_LOW)
    series = number(_EXP[-1])
    for coefficient in reversed(_EXP[:-1]):
        series = series * rest + number(coefficient)
    # n is added to the exponent. For n = 128 (2^128 is not a float32) the series is less than one, so the result is
    # finite.
    exponent = tvm.tirx.reinterpret(integer, shifted) << const(23, integer)
    return tvm.tirx.reinterpret(dtype, tvm.tirx.reinterpret(integer, series) + exponent)


def _erf(x: Any) -> Any:
    dtype = _dtype(x)

    def number(value: float) -> Any:
        return const(value, dtype)

    size = tvm.tirx.max(x, number(0.0) - x)
    t = number(1.0) / (number(1.0) + number(_ERF_P) * size)
    series = number(_ERF[-1])
    for coefficient in reversed(_ERF[:-1]):
        series = series * t + number(coefficient)
    value = number(1.0) - series * t * _exp(number(0.0) - size * size)
    return Select(x < number(0.0), number(0.0) - value, Select(x >= number(0.0), value, x))
