"""The instructions that compute the operators of :mod:`devices.sketches.byte_operators`.

Fast instructions of processors for ``c + dot(a, b)``, for each lane of 32 bits:

========================  ===========  ==================================================================
processor                 operator     instructions
========================  ===========  ==================================================================
AVX-512 VNNI, AVX-VNNI    DOT4         ``vpdpbusd``: one, as fast as a multiply-add of float32
AArch64 with i8mm         DOT4         ``usdot``: one
AArch64 with dotprod      SIGNED_DOT4  ``sdot``: one
AVX2 and AVX-512BW        INT16_DOT2   ``vpmaddwd``, ``vpaddd``: two for two products; nothing saturates
CUDA from sm_61 on        SIGNED_DOT4  ``__dp4a``: one
========================  ===========  ==================================================================

Tensor cores multiply tiles of signed bytes without these operators: see
:mod:`devices.networks.graph.low_precision.byte_forms`.

For every other pair of processor and operator, a longer sequence of instructions is used, or the products are computed
one by one. The result is the same.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.target import Target, codegen
from tvm.tirx import Add, Broadcast, BufferStore, IntImm, PrimFunc, Select, Shuffle, const
from tvm_ffi import structural_map, structural_walk

from devices.builds.passes.vector_lanes import by_parts, dtype_of, lanes_of
from devices.sketches.byte_operators import DOT4, INT16_DOT2, SIGNED_DOT4, IntegerDot, integer_dot, is_clamped

_VNNI = "llvm.x86.avx512.vpdpbusd"
_MULTIPLY_ADD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_NEON = "llvm.aarch64.neon"
_NEON_LANES = 4
_SIGN_BITS = -0x7F7F7F80
"""0x80808080 as a signed number: the byte 128, or -128, four times."""
_FIRST_DP4A = 61
"""Compute capability, times ten, of the first GPU that has ``__dp4a``."""
_FIRST_BYTE_TENSOR_CORES = 72


def fast_integer_dot(target: Target) -> IntegerDot | None:
    """Return the integer operator that ``target`` computes in fewer instructions than the same products in float32;
    None if there is none."""
    if target.kind.name == "cuda":
        return SIGNED_DOT4 if _has_dp4a(target) else None
    processor = _Processor(target)
    if processor.vnni or processor.usdot:
        return DOT4
    if processor.sdot:
        return SIGNED_DOT4
    return INT16_DOT2 if processor.avx2 else None


def multiplies_bytes_in_tiles(target: Target) -> bool:
    """Return true for a GPU whose tensor cores multiply signed bytes (from compute capability 7.2 on)."""
    return target.kind.name == "cuda" and _capability(target) >= _FIRST_BYTE_TENSOR_CORES


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def lower_byte_operators(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass over vectorised functions with a target attribute: replaces the operators by instructions."""
    found: list[Any] = []

    def find(call: Call) -> None:
        if integer_dot(call) or is_clamped(call):
            found.append(call)

    structural_walk(function.body, [(Call, find)])
    if not found:
        return function
    target = function.attrs.get("target") if function.attrs else None
    lowering = _Lowering(_Processor(target))
    body = structural_map(function.body, [(BufferStore, lowering.store)])
    return function.with_body(structural_map(body, [(Call, lowering.call)]))


class _Processor:
    """The instructions of the table above that a target's processor has."""

    def __init__(self, target: Target | None) -> None:
        def has(feature: str) -> bool:
            return target is not None and target.kind.name == "llvm" and codegen.target_has_features(feature, target)

        self.is_llvm = target is not None and target.kind.name == "llvm"
        self.avx2 = has("avx2")
        self.avx512 = has("avx512f") and has("avx512bw")
        self.vnni = (has("avx512vnni") and has("avx512vl")) or has("avxvnni")
        self.usdot, self.sdot = has("i8mm"), has("dotprod")
        self.dp4a = target is not None and _has_dp4a(target)


def _has_dp4a(target: Target) -> bool:
    return target.kind.name == "cuda" and _capability(target) >= _FIRST_DP4A


def _capability(target: Target) -> int:
    """Return the compute capability of a CUDA target, times ten; 0 if the target names none."""
    found = re.fullmatch(r"sm_(\d+)[a-z]?", str(target.attrs.get("arch", "")))
    return 0 if found is None else int(found[1])


class _Lowering:
    """Lowers the operators to the instructions of one processor."""

    def __init__(self, processor: _Processor) -> None:
        self._processor = processor
        # Lanes of the widest vectors.
        self._most = 16 if processor.avx512 else 8 if processor.avx2 or processor.vnni else _NEON_LANES

    def store(self, store: BufferStore) -> BufferStore:
        """If a store writes the sum of a value and an operator, return a store in which the value is an operand of the
        instruction, which adds it; else return the store unchanged."""
        if not isinstance(store.value, Add):
            return store
        for total, product in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
            dot = integer_dot(product)
            if dot is not None:
                value = self._sum(dot, total, *product.args)
                return BufferStore(store.buffer, value, store.indices)
        return store

    def call(self, call: Call) -> Any:
        """Return the lowered value of a call of one of the operators, which is not part of a sum; other calls stay
        unchanged."""
        if is_clamped(call):
            return self._clamped(*call.args)
        dot = integer_dot(call)
        return call if dot is None else self._sum(dot, const(0, dtype_of(call)), *call.args)

    def _clamped(self, x: Any, low: Any, high: Any) -> Any:
        """Return ``x`` clamped to two bounds; NaN becomes the lower bound."""
        if not self._processor.is_llvm:
            return Select(x > low, Select(x < high, x, high), low)
        # Each intrinsic contains its operand once. With selects, TVM would generate three copies of the operand at each
        # level of nesting: a quantised GELU took minutes to build.
        above = tirx.call_llvm_pure_intrin(dtype_of(x), "llvm.maxnum", x, low)
        return tirx.call_llvm_pure_intrin(dtype_of(x), "llvm.minnum", above, high)

    def _sum(self, dot: IntegerDot, total: Any, a: Any, b: Any) -> Any:
        if self._processor.dp4a:
            return _on_gpu(dot, total, a, b)
        return by_parts(functools.partial(self._instruction, dot), (total, a, b), self._most)

    def _few(self, a: Any, b: Any, lanes: int) -> Any:
        """Return the sums of one to three lanes, computed by an instruction with four lanes. Without it, LLVM joins
        byte products of neighbouring statements into such instructions by itself, and some of the sums were wrong."""
        places = [IntImm("int32", at) for at in range(4)]

        def four(value: Any) -> Any:
            return Broadcast(value, 4) if lanes == 1 else Shuffle([value] * -(-4 // lanes), places)

        return Shuffle([self._instruction(DOT4, const(0, "int32x4"), four(a), four(b))], places[:lanes])

    def _instruction(self, dot: IntegerDot, total: Any, a: Any, b: Any) -> Any:
        lanes = lanes_of(a)
        has, dtype = self._processor, f"int32x{lanes}"
        if dot == DOT4 and has.vnni and lanes < dot.terms:
            return total + self._few(a, b, lanes)
        if dot == DOT4 and has.vnni and lanes in (4, 8, 16):
            operands = _as("uint8", a, lanes), _as("int8", b, lanes)
            return tirx.call_llvm_pure_intrin(dtype, f"{_VNNI}.{32 * lanes}", total, *operands)
        if dot == DOT4 and has.avx2 and lanes in (8, 16):
            return total + _by_halves(a, b, lanes)
        if dot == INT16_DOT2 and has.avx2 and lanes in _MULTIPLY_ADD:
            operands = _as("int16", a, lanes), _as("int16", b, lanes)
            return total + tirx.call_llvm_pure_intrin(dtype, _MULTIPLY_ADD[lanes], *operands)
        if dot == DOT4 and has.usdot and lanes == _NEON_LANES:
            return _neon("usdot", total, _as("uint8", a, lanes), _as("int8", b, lanes))
        if dot == SIGNED_DOT4 and has.sdot and lanes == _NEON_LANES:
            return _neon("sdot", total, _as("int8", a, lanes), _as("int8", b, lanes))
        if dot == DOT4 and has.sdot and lanes == _NEON_LANES:
            # The right operand is 128 too large, so the result is too large by 128 times the sum of the left operand.
            signs = const(_SIGN_BITS, dtype)
            left, right, all128 = (_as("uint8", each, lanes) for each in (a, b ^ signs, signs))
            return _neon("udot", total, left, right) - _neon("udot", const(0, dtype), left, all128)
        return total + _number_by_number(dot, a, b)


def _on_gpu(dot: IntegerDot, total: Any, a: Any, b: Any) -> Any:
    if dot == SIGNED_DOT4:
        return _dp4a(a, b, total)
    if dot == DOT4:
        # The left operand is 128 too small, so the result is too small by 128 times the sum of the right operand.
        signs = const(_SIGN_BITS, dtype_of(a))
        return _dp4a(a ^ signs, b, total) - _dp4a(signs, b, const(0, dtype_of(a)))
    return total + _number_by_number(dot, a, b)


def _dp4a(a: Any, b: Any, total: Any) -> Any:
    return tirx.call_pure_extern(dtype_of(a), "__dp4a", a, b, total)


def _neon(name: str, total: Any, a: Any, b: Any) -> Any:
    return tirx.call_llvm_pure_intrin(f"int32x{_NEON_LANES}", f"{_NEON}.{name}", total, a, b)


def _as(kind: str, value: Any, lanes: int) -> Any:
    """Reinterpret a vector of 32-bit numbers as a vector of narrower numbers."""
    return tirx.reinterpret(f"{kind}x{lanes * 32 // tvm.DataType(kind).bits}", value)


def _by_halves(a: Any, b: Any, lanes: int) -> Any:
    """Return the sums of four products. Even and odd bytes are multiplied separately, as 16-bit numbers, so that
    nothing saturates."""
    halves = f"int16x{2 * lanes}"
    eight, low = const(8, halves), const(0x00FF, halves)
    a, b = tirx.reinterpret(halves, a), tirx.reinterpret(halves, b)
    unsigned = (a & low, (a >> eight) & low)
    signed = ((b << eight) >> eight, b >> eight)
    name, dtype = _MULTIPLY_ADD[lanes], f"int32x{lanes}"
    even, odd = (tirx.call_llvm_pure_intrin(dtype, name, *each) for each in zip(unsigned, signed, strict=True))
    return even + odd


def _number_by_number(dot: IntegerDot, a: Any, b: Any) -> Any:
    dtype = dtype_of(a)
    total = const(0, dtype)
    for at in range(dot.terms):
        left = _number(a, at, dot.bits, dot.signed)
        total = total + left * _number(b, at, dot.bits, signed=True)
    return total


def _number(value: Any, at: int, bits: int, signed: bool) -> Any:
    """Return the number at position ``at`` of those packed in 32-bit numbers."""
    dtype = dtype_of(value)
    if not signed:
        return (value >> const(bits * at, dtype)) & const((1 << bits) - 1, dtype)
    return (value << const(32 - bits * (at + 1), dtype)) >> const(32 - bits, dtype)
