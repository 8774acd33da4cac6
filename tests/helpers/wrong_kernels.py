"""Programs made wrong: every mistake of a family, at every place of an unscheduled program where it can be made.

A mistake that changes nothing is not made: a float that is whole is not rounded otherwise, a type that is as wide is
not read with another sign. So every mutant computes something else for some input on which its program is defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx as T
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    Bind,
    BufferStore,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    PrimFunc,
    RShift,
    Select,
    Sub,
    Var,
)
from tvm_ffi import structural_map, structural_walk

from devices.builds.checks.program_reading import ProgramReading
from devices.builds.checks.program_statements import MANTISSA_BITS, call_name, dtype_of
from devices.builds.checks.reproducibility import compares_zeros, is_reproducible
from devices.sketches.description.accesses import REDUCTION, leaf_blocks

_ROUNDS = ("floor", "ceil", "trunc", "nearbyint", "round")
_LARGE = 1e30


@dataclass(frozen=True)
class Mutant:
    """A program with one mistake."""

    mistake: str
    """Kind of the mistake."""
    place: str
    """Block and expression where it was made."""
    function: PrimFunc


def mutants(function: PrimFunc) -> Iterator[Mutant]:
    """Yield the mutants of an unscheduled program."""
    return _Mutation(function).all()


class _Mutation:
    def __init__(self, function: PrimFunc) -> None:
        self._function = function
        self._program = ProgramReading(function)
        self._outputs = {statement.target for statement in self._program.statements} & {
            arg.key for arg in self._program.args
        }
        self._reproducible = is_reproducible(self._program)
        self._zeros = self._reproducible and compares_zeros(self._program)

    def all(self) -> Iterator[Mutant]:
        for name, block in leaf_blocks(self._function).items():
            for mistake, place, changed in [*self._in_values(block), *self._in_blocks(block)]:
                yield Mutant(mistake, f"{name}: {place}", self._with(block, changed))
            for mistake, predicate in self._left_out(block):
                yield Mutant(mistake, name, self._realized(block, predicate))

    def _with(self, block: SBlock, changed: SBlock) -> PrimFunc:
        def replaced(each: SBlock) -> SBlock:
            return changed if each.name_hint == block.name_hint else each

        return self._function.with_body(structural_map(self._function.body, (SBlock, replaced)))

    def _realized(self, block: SBlock, predicate: Callable[[Any], Any]) -> PrimFunc:
        """The function in which a block runs only where a condition on its variables holds."""

        def replaced(each: SBlockRealize) -> SBlockRealize:
            if each.block.name_hint != block.name_hint:
                return each
            values = {str(it.var.name): value for it, value in zip(block.iter_vars, each.iter_values, strict=True)}
            return SBlockRealize(each.iter_values, predicate(values), each.block)

        return self._function.with_body(structural_map(self._function.body, (SBlockRealize, replaced)))

    # --- expressions --------------------------------------------------------------------------------------------------

    def _in_values(self, block: SBlock) -> Iterator[tuple[str, str, SBlock]]:
        for holder in _holders(block):
            for node in _nodes(holder.value):
                own = isinstance(node, TensorLoad) and any(node.source.same_as(s.buffer) for s in _stores(block))
                # Other indices would read outside of a tensor.
                indexes = dtype_of(node) not in MANTISSA_BITS and self._program.sources(node) & self._index_sources()
                if own or (indexes and not isinstance(node, TensorLoad)):
                    continue
                for mistake, instead in self._instead_of(node):
                    value = structural_map(
                        holder.value, (type(node), lambda n, old=node, new=instead: new if n.same_as(old) else n)
                    )
                    yield mistake, str(node)[:60], _with_body(block, _with_value(block.body, holder, value))

    def _instead_of(self, node: Any) -> Iterator[tuple[str, Any]]:
        dtype = dtype_of(node)
        is_float = dtype in MANTISSA_BITS
        match node:
            case TensorLoad():
                yield from self._other_loads(node, dtype)
            case Cast():
                yield from self._other_casts(node)
            case Add():
                if not _is_index(node):
                    yield "other sign", Sub(node.a, node.b)
                    if dtype in ("int8", "uint8", "int16", "uint16"):
                        yield "saturates", _saturated(Add(node.a.astype("int32"), node.b.astype("int32")), dtype)
            case Sub():
                yield "operands swapped", Sub(node.b, node.a)
                yield "other sign", Add(node.a, node.b)
            case Mul():
                yield "factor left out", node.a
                if is_float:
                    yield "other sign", Mul(node, T.const(-1, dtype))
            case Div() if is_float:
                yield "operands swapped", Div(node.b, node.a)
            case FloorDiv() if not is_float and dtype.startswith("int"):
                yield "truncates", T.truncdiv(node.a, node.b)
            case FloorMod() if not is_float and dtype.startswith("int"):
                yield "truncates", T.truncmod(node.a, node.b)
            case RShift() if dtype.startswith("int"):
                yield "read as unsigned", _as(RShift(_as(node.a, "u" + dtype), _as(node.b, "u" + dtype)), dtype)
            case Max() | Min():
                other = Min if isinstance(node, Max) else Max
                yield "other comparison", other(node.a, node.b)
                if not is_float and dtype.startswith("int"):
                    yield "read as unsigned", _as(type(node)(_as(node.a, "u" + dtype), _as(node.b, "u" + dtype)), dtype)
            case LT() | LE() | GT() | GE() | EQ() | NE():
                yield from self._other_comparisons(node)
            case Select():
                yield "branches swapped", Select(node.condition, node.false_value, node.true_value)
            case FloatImm() if 0 < abs(node.value) < _LARGE:
                yield "other constant", T.const(node.value * 1.01, dtype)
            case IntImm() if dtype != "bool" and abs(int(node.value)) < 2**30:
                yield "other constant", T.const(int(node.value) + 1, dtype)
            case Call():
                yield from self._other_calls(node)

    def _other_loads(self, load: Any, dtype: str) -> Iterator[tuple[str, Any]]:
        if dtype in MANTISSA_BITS:
            yield "other sign", Mul(load, T.const(-1, dtype))
        elif dtype == "bool":
            yield "other sign", T.Not(load)
        elif not self._program.sources(load) & self._index_sources():
            yield "other sign", Sub(T.const(0, dtype), load)
        for axis, (index, extent) in enumerate(zip(load.indices, load.source.shape, strict=True)):
            if int(extent) < 2:
                continue
            whole = isinstance(index, Var)
            for mistake, moved in (
                ("one further", T.min(index + 1, int(extent) - 1)),
                ("one before", T.max(index - 1, 0)),
                *(
                    ()
                    if whole
                    else (("clamped wrongly", T.min(index, int(extent) - 2)), ("clamped wrongly", T.max(index, 1)))
                ),
            ):
                indices = list(load.indices)
                indices[axis] = moved.astype(str(tvm.DataType(str(index.ty))))
                yield mistake, T.BufferLoad(load.source, indices)

    def _index_sources(self) -> set[int]:
        return {at for at in range(len(self._program.args)) if any(True for _ in self._program.index_bounds(at))}

    def _other_casts(self, cast: Any) -> Iterator[tuple[str, Any]]:
        to, given = dtype_of(cast), dtype_of(cast.value)
        bits, wide = tvm.DataType(given).bits, tvm.DataType(to).bits
        if given in ("float16", "bfloat16"):
            other = "bfloat16" if given == "float16" else "float16"
            yield f"read as {other}", Cast(to, _as(cast.value, other))
        if given.startswith(("int", "uint")) and (to in MANTISSA_BITS or wide > bits):
            other = given[1:] if given.startswith("u") else "u" + given
            if not self._never_negative(cast.value):
                yield f"read as {other}", Cast(to, _as(cast.value, other))
            if bits > 8:
                yield "read as int8", Cast(to, Cast("int8", cast.value))
        if given.startswith(("int", "uint")) and to.startswith(("int", "uint")) and wide < bits:
            yield "saturates", _saturated(cast.value, to)
        if given in MANTISSA_BITS and to.startswith(("int", "uint")) and not self._is_whole(cast.value):
            yield "rounds to nearest", Cast(to, T.nearbyint(cast.value))
            if to.startswith("int"):
                yield "rounds down", Cast(to, T.floor(cast.value))
        if given == "float32" and to in ("float16", "bfloat16"):
            dropped = 13 if to == "float16" else 16
            masked = T.bitwise_and(_as(cast.value, "uint32"), T.const(0xFFFFFFFF & ~((1 << dropped) - 1), "uint32"))
            yield "rounds to zero", Cast(to, _as(masked, "float32"))

    def _other_comparisons(self, node: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(node, EQ | NE):
            yield "other comparison", (NE if isinstance(node, EQ) else EQ)(node.a, node.b)
        elif not _loads(node):  # of loop variables: conditions of padding, which may not read more
            if isinstance(node, LE):
                yield "edge left out", LT(node.a, node.b)
            elif isinstance(node, LT):
                yield "edge left out", LT(node.a + 1, node.b)
        else:
            swapped = {LT: GT, GT: LT, LE: GE, GE: LE}[type(node)]
            yield "other comparison", swapped(node.a, node.b)

    def _other_calls(self, call: Any) -> Iterator[tuple[str, Any]]:
        name, dtype = call_name(call), dtype_of(call)
        if name == "if_then_else":
            yield "padding doubled", T.if_then_else(call.args[0], call.args[1], call.args[2] + T.const(1, dtype))
            return
        if dtype not in MANTISSA_BITS:
            return
        if name in _ROUNDS and not self._is_whole(call.args[0]):
            x = call.args[0]
            half = T.const(0.5, dtype)
            others = {
                "floor": T.floor(x),
                "ceil": T.ceil(x),
                "trunc": T.trunc(x),
                "nearbyint": T.nearbyint(x),
                "half away from zero": Select(x < T.const(0, dtype), T.ceil(x - half), T.floor(x + half)),
                "half up": T.floor(x + half),
            }
            for other, value in others.items():
                if other != name:
                    yield f"rounds by {other}", value
        elif name == "fabs":
            x = call.args[0]
            yield "function left out", x
            if self._zeros:
                yield "sign of zero", Select(x < T.const(0, dtype), T.const(0, dtype) - x, x)
        elif len(call.args) == 2 and name in ("pow", "atan2", "copysign", "fmod"):
            yield "operands swapped", Call(call.ty, call.op, [call.args[1], call.args[0]])
        elif len(call.args) == 1:
            yield "function left out", call.args[0]

    def _is_whole(self, value: Any) -> bool:
        """Return true for a float that is whole for certain."""
        match value:
            case Call():
                name = call_name(value)
                return name in _ROUNDS or (
                    name == "if_then_else" and all(self._is_whole(each) for each in value.args[1:])
                )
            case FloatImm():
                return float(value.value).is_integer()
            case Max() | Min() | Add() | Sub() | Mul():
                return self._is_whole(value.a) and self._is_whole(value.b)
            case Cast():
                return dtype_of(value.value) not in MANTISSA_BITS or self._is_whole(value.value)
            case TensorLoad():
                made = self._program.inlined(value)
                return not made.same_as(value) and self._is_whole(made)
        return False

    def _never_negative(self, value: Any) -> bool:
        sources = self._program.sources(value)
        return bool(sources) and all(self._program.args[at].dtype == "bool" for at in sources)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _in_blocks(self, block: SBlock) -> Iterator[tuple[str, str, SBlock]]:
        stores = _stores(block)
        if len(stores) != 1 or isinstance(block.body, Bind):
            return
        store = stores[0]
        dtype = str(store.buffer.dtype)
        output = hash(store.buffer) in self._outputs
        last = [it for it in block.iter_vars if int(it.dom.extent) > 1]

        def written(value: Any) -> SBlock:
            return _with_body(block, _with_value(block.body, store, value))

        if block.init is not None:
            sums = isinstance(store.value, Add)
            (init,) = _stores_of(block.init)
            wrong = T.const(1 if sums else 0, dtype)
            yield "initialised wrongly", str(init.value), _with_init(block, _with_value(block.init, init, wrong))
            if output:
                yield "not initialised", str(init.value), _with_init(block, None)
            own = T.BufferLoad(store.buffer, store.indices)
            for it in (it for it in last if int(it.iter_type) == REDUCTION):
                for end in (0, int(it.dom.extent) - 1):
                    yield "term left out", f"{it.var.name}={end}", written(Select(T.EQ(it.var, end), own, store.value))
                    if sums:
                        twice = Select(T.EQ(it.var, end), store.value + (store.value - own), store.value)
                        yield "term twice", f"{it.var.name}={end}", written(twice)
            if sums and dtype == "float32":
                yield "sums in float16", "", written(Cast(dtype, Cast("float16", store.value)))
                # TVM leaves out a cast to bfloat16 and back.
                kept = T.bitwise_and(_as(store.value, "uint32"), T.const(0xFFFF0000, "uint32"))
                yield "sums in bfloat16", "", written(_as(kept, dtype))
            if sums and dtype == "int32":
                yield "sums in int16", "", written(Cast(dtype, Cast("int16", store.value)))
            return
        if not output:
            for it in last:
                for end in (0, int(it.dom.extent) - 1):
                    other = Select(
                        T.EQ(it.var, end), T.const(0, dtype) if dtype != "bool" else T.Not(store.value), store.value
                    )
                    if dtype in MANTISSA_BITS or dtype == "bool":
                        yield "row left out", f"{it.var.name}={end}", written(other)
            return
        if dtype in MANTISSA_BITS and self._reproducible:
            value, zero = store.value, T.const(0, dtype)
            bits = tvm.DataType(dtype).bits
            yield "NaN lost", "", written(Select(T.isnan(value.astype("float32") if bits < 32 else value), zero, value))
            if bits >= 32:
                least, most = (2.0**-126, 3.4028234663852886e38) if bits == 32 else (2.0**-1022, 1.7976931348623157e308)
                yield "subnormal lost", "", written(Select(T.abs(value) < T.const(least, dtype), zero, value))
                yield "infinity lost", "", written(T.min(value, T.const(most, dtype)))
            if self._zeros:
                yield "sign of zero", "", written(Select(T.EQ(value, zero), zero, value))

    def _left_out(self, block: SBlock) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        """Conditions under which an output is not written everywhere."""
        if not any(hash(store.buffer) in self._outputs for store in _stores(block)):
            return
        spatial = [it for it in block.iter_vars if int(it.iter_type) != REDUCTION and int(it.dom.extent) > 1]
        for it in spatial:
            name, extent = str(it.var.name), int(it.dom.extent)
            yield (
                f"first of {name} not written",
                lambda at, name=name: T.GE(at[name], T.const(1, str(tvm.DataType(str(at[name].ty))))),
            )
            yield (
                f"last of {name} not written",
                lambda at, name=name, extent=extent: T.LT(
                    at[name], T.const(extent - 1, str(tvm.DataType(str(at[name].ty))))
                ),
            )
        if spatial and int(spatial[-1].dom.extent) > 4:
            name, extent = str(spatial[-1].var.name), int(spatial[-1].dom.extent)
            whole = (extent - 1) // 4 * 4
            yield "tail not written", lambda at: T.LT(at[name], T.const(whole, str(tvm.DataType(str(at[name].ty)))))


def _holders(block: SBlock) -> list[Any]:
    found: list[Any] = []
    structural_walk(block.body, [(Bind, found.append), (BufferStore, found.append)])
    return found


def _stores(block: SBlock) -> list[Any]:
    return _stores_of(block.body)


def _stores_of(body: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(body, (BufferStore, found.append))
    return found


def _nodes(value: Any) -> Iterator[Any]:
    """Yield the nodes of an expression, without those of indices."""
    yield value
    if isinstance(value, TensorLoad):
        return
    parts: list[Any] = [getattr(value, name) for name in ("a", "b") if hasattr(value, name)]
    if isinstance(value, Cast):
        parts = [value.value]
    elif isinstance(value, Select):
        parts = [value.condition, value.true_value, value.false_value]
    elif isinstance(value, Call):
        parts = list(value.args)
    for part in parts:
        yield from _nodes(part)


def _loads(value: Any) -> list[Any]:
    return [node for node in _nodes(value) if isinstance(node, TensorLoad)]


def _is_index(value: Any) -> bool:
    return not _loads(value)


def _as(value: Any, dtype: str) -> Any:
    """The same bits as another type."""
    if isinstance(value, IntImm):
        return T.const(int(value.value) % 2 ** tvm.DataType(dtype).bits, dtype)
    return T.reinterpret(dtype, value)


def _saturated(value: Any, dtype: str) -> Any:
    info = tvm.DataType(dtype).bits
    low, high = (0, 2**info - 1) if dtype.startswith("u") else (-(2 ** (info - 1)), 2 ** (info - 1) - 1)
    wide = dtype_of(value)
    low = max(low, 0) if wide.startswith("u") else low
    return T.max(T.min(value, T.const(high, wide)), T.const(low, wide)).astype(dtype)


def _with_value(body: Any, holder: Any, value: Any) -> Any:
    def replaced(each: Any) -> Any:
        if not each.same_as(holder):
            return each
        return Bind(each.var, value) if isinstance(each, Bind) else BufferStore(each.buffer, value, each.indices)

    return structural_map(body, (type(holder), replaced))


def _with_body(block: SBlock, body: Any) -> SBlock:
    return _rebuilt(block, body, block.init)


def _with_init(block: SBlock, init: Any) -> SBlock:
    return _rebuilt(block, block.body, init)


def _rebuilt(block: SBlock, body: Any, init: Any) -> SBlock:
    return SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
