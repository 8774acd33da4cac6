"""Maxima and minima of floats with the semantics of frameworks: NaN stays NaN, and a maximum of minus infinities is
minus infinity.

TensorIR's ``max(a, b)`` is ``b`` if one operand is NaN, and its reductions begin at the largest finite number of either
sign. These passes change both in the scheduled kernel. So workloads, sketches and records stay unchanged, and every
kernel, tuned or not, has the same semantics.

If one operand is constant there is no cost: it becomes the first operand. Otherwise NaN costs a comparison and a
selection: a pooling of 3x3 takes 1.1 to 1.2 times as long, a serial maximum of a row 1.5 times (AVX2, one thread). The
largest element of a row of a softmax does not need this. It is only subtracted from the elements of the row, where a
NaN stays, so it is computed as before.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock
from tvm.tirx import NE, Broadcast, BufferStore, FloatImm, Let, Max, Min, PrimFunc, Select, Var, const
from tvm_ffi import structural_map, structural_walk

_OF_A_SOFTMAX = "T_softmax_maxelem"
_BORDER = "prim.if_then_else"  # topi pads with it; selections of a network are Selects


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def begin_at_infinity(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass over kernels that still have blocks: maxima and minima begin at an infinity, and the padding of poolings has
    this value too. Kernels of GPUs stay unchanged, because TVM distributes a reduction over threads only if it begins
    at the largest finite number."""
    target = function.attrs.get("target") if function.attrs else None
    if target is not None and target.kind.name != "llvm":
        return function
    if target is not None:
        function = function.with_body(structural_map(function.body, (SBlock, _without_nan)))
    kinds: dict[Any, Any] = {}

    def find(store: Any) -> None:
        value = store.value
        if isinstance(value, Max | Min) and _is_float(value) and _reads(value.a, store.buffer):
            kinds[store.buffer] = type(value)
            # Padding that was not inlined is written by a separate block.
            kinds.update(dict.fromkeys(_loaded(value.b), type(value)))

    structural_walk(function.body, [(BufferStore, find)])
    if not kinds:
        return function

    def begun(store: Any) -> Any:
        kind = kinds.get(store.buffer)
        value = store.value if kind is None else _at_infinity(store.value, kind)
        return store if value.same_as(store.value) else BufferStore(store.buffer, value, list(store.indices))

    return function.with_body(structural_map(function.body, (BufferStore, begun)))


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def propagate_nan(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass directly before code generation, after all passes that simplify: maxima and minima of floats keep NaN."""
    return function.with_body(structural_map(function.body, ((Max, Min), _with_nan)))


def _without_nan(block: Any) -> Any:
    """If a block is the maximum of a softmax, return it with selections instead of maxima, so that the later passes do
    not add the handling of NaN. Other blocks stay unchanged."""
    if not block.name_hint.startswith(_OF_A_SOFTMAX):
        return block
    body = structural_map(block.body, (Max, lambda each: Select(each.a > each.b, each.a, each.b)))
    return SBlock(
        list(block.iter_vars),
        list(block.reads),
        list(block.writes),
        block.name_hint,
        body,
        block.init,
        list(block.alloc_buffers),
        list(block.match_buffers),
        block.annotations,
        block.span,
    )


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def propagate_nan_on_device(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass over kernels of GPUs, after the last pass that simplifies. On a GPU, ``max(a, b)`` is the other operand if
    one is NaN."""
    return function.with_body(structural_map(function.body, ((Max, Min), _with_nan_on_device)))


def _with_nan_on_device(extreme: Any) -> Any:
    if not _is_float(extreme):
        return extreme
    kind = type(extreme)
    a, b = Var("a", extreme.ty), Var("b", extreme.ty)
    value = kind(a, b)
    for operand, variable in ((extreme.b, b), (extreme.a, a)):
        if not _is_number(operand):
            value = Select(NE(variable, variable), variable, value)
    return Let(a, extreme.a, Let(b, extreme.b, value))


def _with_nan(extreme: Any) -> Any:
    if not _is_float(extreme):
        return extreme
    kind, a, b = type(extreme), extreme.a, extreme.b
    if _is_number(b):
        a, b = b, a
    if _is_number(a):
        return kind(a, b)  # b if one is NaN
    # In a reduction ``a`` is the accumulator: the test of ``b`` is not on the critical path.
    if isinstance(b, Var):
        return _unless_nan(b, kind(b, a))
    last = Var("b", b.ty)
    return Let(last, b, _unless_nan(last, kind(last, a)))


def _unless_nan(value: Any, extreme: Any) -> Any:
    """Return ``extreme``, or NaN if ``value`` is NaN. The selection is between integers: with floats, LLVM would merge
    it with the extreme into comparisons, and no longer use the processor's instruction for maxima and minima."""
    dtype = str(value.ty)
    integer = dtype.replace("float", "int")
    return tirx.reinterpret(dtype, Select(tirx.isnan(value), _nan(integer), tirx.reinterpret(integer, extreme)))


def _nan(integer: str) -> Any:
    """Return the bits of the canonical NaN: rounding to bfloat16 may turn others into a number."""
    bits = int(integer.removeprefix("int").split("x")[0])
    return const({16: 0x7E00, 32: 0x7FC00000, 64: 0x7FF8 << 48}[bits], integer)


def _at_infinity(value: Any, kind: Any) -> Any:
    """Return ``value`` with infinity instead of the largest finite number, where this is the initial value of a
    reduction ``kind``, or padding."""
    if isinstance(value, FloatImm):
        dtype = str(value.ty)
        bound, infinity = (tirx.min_value, -math.inf) if kind is Max else (tirx.max_value, math.inf)
        return const(infinity, dtype) if value.value == bound(dtype).value else value
    if isinstance(value, kind):
        inner = _at_infinity(value.b, kind)
        return value if inner.same_as(value.b) else kind(value.a, inner)
    if isinstance(value, Call) and value.op.name == _BORDER and not _loaded(value.args[0]):
        condition, inside, outside = value.args
        branches = [_at_infinity(branch, kind) for branch in (inside, outside)]
        return tirx.if_then_else(condition, *branches)
    return value


def _reads(value: Any, buffer: Any) -> bool:
    return isinstance(value, TensorLoad) and bool(value.source.same_as(buffer))


def _loaded(value: Any) -> list[Any]:
    """Return the buffers that an expression reads."""
    found: list[Any] = []
    structural_walk(value, [(TensorLoad, lambda load: found.append(load.source))])
    return found


def _is_float(value: Any) -> bool:
    return str(value.ty).startswith(("float", "bfloat"))


def _is_number(value: Any) -> bool:
    """Return true for a constant that is not NaN, or a vector of it."""
    if isinstance(value, Broadcast):
        value = value.value
    return isinstance(value, FloatImm) and not math.isnan(value.value)
