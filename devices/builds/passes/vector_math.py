"""exp, erf and small powers as arithmetic in float32 that LLVM turns into vector instructions.

TVM lowers them to LLVM's intrinsics and to calls of the C library, which take one number at a time: a softmax spends
nine tenths of its time there. Functions that TVM makes of exp (tanh, GELU, SiLU) become arithmetic too.

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
# exp(r) for |r| <= log(2) / 2, of the smallest relative error, 2e-9, that a polynomial of degree 6 can have.
_EXP = (
    1.0000000005541891,
    1.0000000363231216,
    0.4999999207949004,
    0.16666420170086885,
    0.0416682256425744,
    0.008374815790242953,
    0.0013836841929442977,
)
# log(2) in two parts: the product of the first with a whole number of a few bits is exact.
_LOG2_HIGH = 355 / 512
_LOG2_LOW = math.log(2) - _LOG2_HIGH
_LEAST, _MOST = -87.33654, 88.72283  # exp is a normal number between them
_ROUNDS = 1.5 * 2**23  # added to a number of less than 22 bits, it leaves the nearest whole number in the last bits
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf(x) = 1 - (a1 t + ... + a5 t^5) exp(-x^2) with
# t = 1 / (1 + p x) for x >= 0, within 1.5e-7.
_ERF_P = 0.3275911
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_PRODUCTS = (2.0, 3.0, 4.0)
"""Exponents of powers that are products."""


@functools.cache
def use_vector_math() -> None:
    """Use this arithmetic in all kernels that this process builds for CPUs."""
    for name, rule in (("tirx.exp", _exp), ("tirx.erf", _erf), ("tirx.sigmoid", _sigmoid)):
        op = tvm.ir.Op.get(name)
        tvm.ir.register_op_attr(name, _RULE, _lowering(rule, _rule_of(op)), _BEFORE_TVMS)
    op = tvm.ir.Op.get("tirx.pow")
    tvm.ir.register_op_attr("tirx.pow", _RULE, _power(_rule_of(op)), _BEFORE_TVMS)


def _rule_of(op: Any) -> Callable[[Any], Any]:
    """Return TVM's own rule for a function."""
    names = (_RULE, "default.FLowerIntrinsic", "default.FLegalize")
    rule: Callable[[Any], Any] = next(rule for rule in map(op.get_attr, names) if rule is not None)
    return rule


def _power(others: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the rule for powers: products for the constant exponents of :data:`_PRODUCTS`, ``others`` for all else."""

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
    """Return ``rule`` for numbers of 32 and 16 bits, and ``others`` for all else: vectors of unknown length too."""

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
    # Comparisons that are false for NaN.
    return Select(x < least, const(0.0, dtype), Select(x > most, const(math.inf, dtype), _bounded_exp(x)))


def _sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)). What exp(-x) is below its least value does not change the sum."""
    dtype = _dtype(x)
    one, most = const(1.0, dtype), const(_MOST, dtype)
    opposite = const(0.0, dtype) - x
    return one / (one + Select(opposite > most, const(math.inf, dtype), _bounded_exp(opposite)))


def _bounded_exp(x: Any) -> Any:
    """Return exp(x) as 2^n exp(r) with x = n log(2) + r: the nearest normal number where it is none."""
    dtype = _dtype(x)
    integer = dtype.replace("float32", "int32")

    def number(value: float) -> Any:
        return const(value, dtype)

    # NaN stays NaN in this order of operands.
    bounded = tvm.tirx.max(number(_LEAST), tvm.tirx.min(number(_MOST), x))
    shifted = bounded * number(1 / math.log(2)) + number(_ROUNDS)  # its last bits are n
    power = shifted - number(_ROUNDS)
    rest = bounded - power * number(_LOG2_HIGH) - power * number(_LOG2_LOW)
    series = number(_EXP[-1])
    for coefficient in reversed(_EXP[:-1]):
        series = series * rest + number(coefficient)
    # n is added to the exponent. Where that is 2^128, which is no number, the series is less than one.
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
