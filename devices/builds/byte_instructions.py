"""The instructions that compute the operators of :mod:`devices.sketches.byte_operators`.

With VNNI ``c + dot4(a, b)`` is one instruction (``vpdpbusd``, 16 lanes) as fast as a multiply-add of float32. Other
CPUs compute it by two products of 16-bit numbers (``vpmaddwd``), or number by number.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.target import Target, codegen
from tvm.tirx import Add, BufferStore, IntImm, PrimFunc, Select, Shuffle, const
from tvm_ffi import structural_map, structural_walk

from devices.sketches.byte_operators import is_clamped, is_dot4

_BYTES = 4
_VNNI = "llvm.x86.avx512.vpdpbusd"
_MULTIPLY_ADD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}


def has_fast_dot4(target: Target) -> bool:
    """Return true where an instruction of the target computes :func:`dot4` and adds it to a sum."""
    if target.kind.name != "llvm":
        return False
    features = ("avx512vnni", "avxvnni")
    return any(codegen.target_has_features(feature, target) for feature in features)


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def lower_byte_operators(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass over vectorised functions that know their target: write the operators with instructions."""
    found: list[Any] = []

    def find(call: Call) -> None:
        if is_dot4(call) or is_clamped(call):
            found.append(call)

    structural_walk(function.body, [(Call, find)])
    if not found:
        return function
    target = function.attrs.get("target") if function.attrs else None
    lowering = _Lowering(target)
    body = structural_map(function.body, [(BufferStore, lowering.store)])
    return function.with_body(structural_map(body, [(Call, lowering.call)]))


class _Lowering:
    """The instructions of one target."""

    def __init__(self, target: Target | None) -> None:
        def has(feature: str) -> bool:
            return target is not None and target.kind.name == "llvm" and codegen.target_has_features(feature, target)

        self._wide = has("avx512f") and has("avx512bw")
        self._vnni = (has("avx512vnni") and has("avx512vl")) or has("avxvnni")
        self._avx2 = has("avx2")

    def store(self, store: BufferStore) -> BufferStore:
        """Return a store of a sum of which one term is a :func:`dot4` with the sum as an operand of the
        instruction."""
        if not isinstance(store.value, Add):
            return store
        for total, product in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
            if is_dot4(product):
                value = self._sum(total, *product.args)
                return BufferStore(store.buffer, value, store.indices)
        return store

    def call(self, call: Call) -> Any:
        """Return the value of a call of one of the operators; a :func:`dot4` is added to nothing."""
        if is_clamped(call):
            x, low, high = call.args
            return Select(x > low, Select(x < high, x, high), low)
        return self._sum(const(0, _dtype(call)), *call.args) if is_dot4(call) else call

    def _sum(self, total: Any, a: Any, b: Any) -> Any:
        lanes = tvm.DataType(_dtype(a)).lanes
        most = 16 if self._wide else 8
        if not (self._vnni or self._avx2) or lanes % 4 or (lanes > most and lanes % most):
            return total + _number_by_number(a, b)
        if lanes <= most:
            return self._instruction(total, a, b, lanes)
        parts = [
            self._instruction(_lanes(total, at, most), _lanes(a, at, most), _lanes(b, at, most), most)
            for at in range(lanes // most)
        ]
        return Shuffle(parts, [IntImm("int32", at) for at in range(lanes)])

    def _instruction(self, total: Any, a: Any, b: Any, lanes: int) -> Any:
        if self._vnni and lanes in (4, 8, 16):
            bytes_ = (tirx.reinterpret(f"uint8x{4 * lanes}", a), tirx.reinterpret(f"int8x{4 * lanes}", b))
            return tirx.call_llvm_pure_intrin(f"int32x{lanes}", f"{_VNNI}.{32 * lanes}", total, *bytes_)
        if self._avx2 and lanes in _MULTIPLY_ADD:
            return total + _by_halves(a, b, lanes)
        return total + _number_by_number(a, b)


def _by_halves(a: Any, b: Any, lanes: int) -> Any:
    """Return the products of the even and of the odd bytes, each two at a time as 16-bit numbers: nothing saturates."""
    halves = f"int16x{2 * lanes}"
    eight, low = const(8, halves), const(0x00FF, halves)
    a, b = tirx.reinterpret(halves, a), tirx.reinterpret(halves, b)
    unsigned = (a & low, (a >> eight) & low)
    signed = ((b << eight) >> eight, b >> eight)
    name, dtype = _MULTIPLY_ADD[lanes], f"int32x{lanes}"
    even, odd = (tirx.call_llvm_pure_intrin(dtype, name, *each) for each in zip(unsigned, signed, strict=True))
    return even + odd


def _number_by_number(a: Any, b: Any) -> Any:
    dtype = _dtype(a)
    total = const(0, dtype)
    for at in range(_BYTES):
        shift, up, down = const(8 * at, dtype), const(24 - 8 * at, dtype), const(24, dtype)
        total = total + ((a >> shift) & const(0xFF, dtype)) * ((b << up) >> down)
    return total


def _lanes(value: Any, at: int, count: int) -> Any:
    """Return the part ``at`` of a vector, of so many lanes."""
    if isinstance(value, tirx.Broadcast):
        return tirx.Broadcast(value.value, count)
    return Shuffle([value], [IntImm("int32", lane) for lane in range(at * count, (at + 1) * count)])


def _dtype(value: Any) -> str:
    return str(tvm.DataType(str(value.ty)))
