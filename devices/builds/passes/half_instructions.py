"""The instructions that compute the operators of :mod:`devices.sketches.half_operators`.

With AVX512-BF16, ``c + dot2(x, y)`` is one instruction (``vdpbf16ps``). It does two multiply-adds, and is as fast as
one multiply-add of float32. AArch64's BF16 has such an instruction too (``bfdot``). Both treat subnormal numbers as
zero. Other CPUs do two multiply-adds of float32, where a bfloat16 number is the upper half of the same number in
float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Call, StringImm, TensorLoad
from tvm.ir.prim import LShift
from tvm.target import Target, codegen
from tvm.tirx import Add, AttrStmt, BufferStore, Cast, Let, PrimFunc, Select, Var, const
from tvm_ffi import structural_map, structural_walk

from devices.builds.passes.joined_loads import joined
from devices.builds.passes.vector_lanes import by_parts, dtype_of, lanes_of
from devices.sketches.half_operators import is_dot2, is_pair

# The intrinsic takes vectors of bfloat16, which TVM's code generator does not support.
_FUNCTION = """
define <{n} x float> @fleet_tune_dot2_{n}(<{n} x float> %sum, <{n} x i32> %x, <{n} x i32> %y) {{
  %a = bitcast <{n} x i32> %x to <{m} x bfloat>
  %b = bitcast <{n} x i32> %y to <{m} x bfloat>
  %r = call <{n} x float> @{name}(<{n} x float> %sum, <{m} x bfloat> %a, <{m} x bfloat> %b)
  ret <{n} x float> %r
}}
declare <{n} x float> @{name}(<{n} x float>, <{m} x bfloat>, <{m} x bfloat>)
"""
_UPPER = -(1 << 16)
_HALF_STEP = (1 << 15) - 1
"""Added to the bits of a float32 to round it to bfloat16. One more is added if the last bit of the bfloat16 is set, so
that ties go to even."""
_INFINITY, _QUIET = 0x7F800000, 1 << 22


@dataclass(frozen=True)
class _Instruction:
    """An instruction that computes :func:`dot2` and adds it to a sum."""

    architecture: str
    """Prefix of the target's triple."""
    features: tuple[str, ...]
    """LLVM's names of the processor features that the instruction needs."""
    names: dict[int, str]
    """LLVM's intrinsics, by number of lanes."""

    @property
    def functions(self) -> str:
        """Functions in LLVM IR that take pairs as 32-bit numbers."""
        return "".join(_FUNCTION.format(n=lanes, m=2 * lanes, name=name) for lanes, name in self.names.items())


_INSTRUCTIONS = (
    _Instruction(
        "x86_64",
        ("avx512bf16", "avx512vl"),
        {lanes: f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}" for lanes in (4, 8, 16)},
    ),
    _Instruction("aarch64", ("neon", "bf16"), {4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16"}),
)


def has_fast_dot2(target: Target) -> bool:
    """Return true if an instruction of the target computes :func:`dot2` and adds it to a sum."""
    return _instruction_of(target) is not None


def _instruction_of(target: Target) -> _Instruction | None:
    if target.kind.name != "llvm":
        return None
    for each in _INSTRUCTIONS:
        # LLVM warns about features that the architecture does not know.
        if str(target.attrs.get("mtriple", "")).startswith(each.architecture):
            return each if all(codegen.target_has_features(name, target) for name in each.features) else None
    return None


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def lower_half_operators(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass over vectorised functions with a target attribute: replaces the operators by instructions."""
    found: list[Any] = []

    def find(call: Call) -> None:
        if is_dot2(call) or is_pair(call):
            found.append(call)

    structural_walk(function.body, [(Call, find)])
    if not found:
        return function
    target = function.attrs.get("target") if function.attrs else None
    lowering = _Lowering(None if target is None else _instruction_of(target))
    body = structural_map(function.body, [(BufferStore, lowering.store)])
    body = structural_map(body, [(Call, lowering.call)])
    if lowering.instruction is not None:
        functions = StringImm(lowering.instruction.functions)
        body = AttrStmt(const(0, "int32"), "pragma_import_llvm", functions, body)
    return function.with_body(body)


class _Lowering:
    """Lowers the operators for one target. ``instruction``: the target's instruction for them; None if it has none."""

    def __init__(self, instruction: _Instruction | None) -> None:
        self.instruction = instruction

    def store(self, store: BufferStore) -> BufferStore:
        """If a store writes the sum of a value and a :func:`dot2`, return a store in which the value is an operand of
        the instruction, which adds it; else return the store unchanged."""
        if not isinstance(store.value, Add):
            return store
        for total, product in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
            if is_dot2(product):
                return BufferStore(store.buffer, self._sum(total, *product.args), store.indices)
        return store

    def call(self, call: Call) -> Any:
        """Return the lowered value of a call of one of the operators. A :func:`dot2` is not part of a sum here. Other
        calls stay unchanged."""
        if is_pair(call):
            loads = [_read(each) for each in call.args]
            value = joined(loads) if None not in loads else None
            if value is not None:
                return value
            first, second = (_bits(each) for each in call.args)
            kind = dtype_of(first)
            # A shift of signed numbers copies the sign, which the mask removes.
            return ((first >> const(16, kind)) & const(~_UPPER, kind)) | (second & const(_UPPER, kind))
        return self._sum(const(0.0, dtype_of(call)), *call.args) if is_dot2(call) else call

    def _sum(self, total: Any, x: Any, y: Any) -> Any:
        if self.instruction is None:
            return _by_halves(total, x, y)
        return by_parts(self._part, (total, x, y), max(self.instruction.names))

    def _part(self, total: Any, x: Any, y: Any) -> Any:
        lanes = lanes_of(x)
        if self.instruction is None or lanes not in self.instruction.names:
            return _by_halves(total, x, y)
        return tirx.call_pure_extern(f"float32x{lanes}", f"fleet_tune_dot2_{lanes}", total, x, y)


def _by_halves(total: Any, x: Any, y: Any) -> Any:
    return total + _half(x, False) * _half(y, False) + _half(x, True) * _half(y, True)


def _half(numbers: Any, upper: bool) -> Any:
    """Return the bfloat16 numbers in the upper or lower halves, as float32."""
    kind = dtype_of(numbers)
    bits = numbers & const(_UPPER, kind) if upper else numbers << const(16, kind)
    return tirx.reinterpret(kind.replace("int32", "float32"), bits)


def _bits(value: Any) -> Any:
    """Return the bits of numbers in float32, the type in which kernels compute with bfloat16, with the upper 16 bits
    rounded to bfloat16. TVM drops conversions to bfloat16 within a kernel, so only numbers that are read from a buffer
    of that type are known to need no rounding."""
    kind = dtype_of(value).replace("float32", "int32")
    bits = tirx.reinterpret(kind, value)
    if _is_rounded(value):
        return bits
    # Rounding would turn some NaN into zero. Truncation would turn those NaN into infinity in which only lower bits are
    # set.
    number = Var("bits", bits.ty)
    odd = (number >> const(16, kind)) & const(1, kind)
    is_nan = (number & const((1 << 31) - 1, kind)) > const(_INFINITY, kind)
    rounded = Select(is_nan, number | const(_QUIET, kind), number + (odd + const(_HALF_STEP, kind)))
    return Let(number, bits, rounded)


def _read(value: Any) -> TensorLoad | None:
    """Return the 16-bit load of a bfloat16 number that is read from memory; None for a number that is computed."""
    if getattr(getattr(value, "op", None), "name", "") != "tirx.reinterpret" or not isinstance(value.args[0], LShift):
        return None
    bits = value.args[0].a
    load = bits.value if isinstance(bits, Cast) else None
    return load if isinstance(load, TensorLoad) and str(load.source.dtype) == "uint16" else None


def _is_rounded(value: Any) -> bool:
    """Return true for numbers that are read from a bfloat16 buffer, for zero, and for selections between such
    values."""
    if isinstance(value, tirx.Broadcast):
        return _is_rounded(value.value)
    if isinstance(value, tirx.FloatImm):
        return bool(value.value == 0)
    if isinstance(value, Select):
        return _is_rounded(value.true_value) and _is_rounded(value.false_value)
    name = getattr(value.op, "name", "") if isinstance(value, Call) else ""
    if name == "prim.if_then_else":
        return _is_rounded(value.args[1]) and _is_rounded(value.args[2])
    return name == "tirx.reinterpret" and isinstance(value.args[0], LShift)
