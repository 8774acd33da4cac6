"""The effects of a scheduled program, read from its TensorIR: loops, regions and launches by evaluating indices with
numpy.

Nothing here uses the symbolic description or its formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import (
    Add,
    BufferStore,
    Cast,
    FloorDiv,
    FloorMod,
    For,
    IntImm,
    Max,
    Min,
    Mul,
    PrimFunc,
    Sub,
    Var,
)
from tvm_ffi import structural_visit, structural_walk

Values = list[tuple[Any, NDArray[np.int64]]]
KINDS = ("serial", "parallel", "vectorize", "unroll", "thread")


@dataclass(frozen=True)
class Touch:
    """One access of a block."""

    buffer: Any
    indices: tuple[Any, ...]
    write: bool


@dataclass(frozen=True)
class Placed:
    """A leaf block: the realizations from the outermost to it, and all loops around it."""

    realizes: tuple[Any, ...]
    loops: tuple[For, ...]

    @property
    def block(self) -> SBlock:
        return self.realizes[-1].block

    @property
    def extents(self) -> list[int]:
        return [int(loop.extent) for loop in self.loops]

    def kinds(self) -> list[str]:
        """Kind of every loop; of a thread loop what it is bound to."""
        found = []
        for loop in self.loops:
            kind = KINDS[int(loop.kind)]
            found.append(str(loop.thread_binding.thread_tag) if kind == "thread" else kind)
        return [{"vthread.x": "vthread"}.get(kind, kind) for kind in found]

    def touches(self) -> list[Touch]:
        """The accesses of the block's body (not of its initialisation)."""
        found: list[Touch] = []
        structural_walk(
            self.block.body,
            [
                (TensorLoad, lambda node: found.append(Touch(node.source, tuple(node.indices), False))),
                (BufferStore, lambda node: found.append(Touch(node.buffer, tuple(node.indices), True))),
            ],
        )
        return found

    def points(self, free: list[int], at: NDArray[np.int64] | None = None) -> tuple[Values, NDArray[np.bool_]]:
        """Values of all iteration variables while the loops ``free`` run and the others stand at 0, and which of these
        points are executed at all. ``at``: instead of running, the positions (k, number of loops) to evaluate."""
        if at is None:
            extents = [extent if i in free else 1 for i, extent in enumerate(self.extents)]
            count = prod(extents)
            flat = np.arange(count, dtype=np.int64)
            columns = []
            for i in range(len(extents)):
                inner = prod(extents[i + 1 :])
                columns.append(flat // inner % extents[i])
            at = np.stack(columns, axis=1) if columns else np.zeros((1, 0), dtype=np.int64)
        known: Values = [(loop.loop_var, at[:, i]) for i, loop in enumerate(self.loops)]
        executed = np.ones(len(at), dtype=bool)
        for realize in self.realizes:
            executed &= evaluate(realize.predicate, known).astype(bool) & np.ones(len(at), dtype=bool)
            values = [evaluate(value, known) for value in realize.iter_values]
            known = known + [(it.var, v) for it, v in zip(realize.block.iter_vars, values, strict=True)]
        return known, executed

    def addresses(
        self, touch: Touch, free: list[int], at: NDArray[np.int64] | None = None, gap: int = 1024
    ) -> NDArray[np.int64]:
        """Flat element addresses that an access touches at the executed points.

        ``gap``: elements between the rows, so that an index that leaves the buffer where a condition guards it is not
        taken for an element of another row. 0: as the buffer lies in memory.
        """
        known, executed = self.points(free, at)
        flat = np.zeros(len(executed), dtype=np.int64)
        for size, index in zip(touch.buffer.shape, touch.indices, strict=True):
            flat = flat * (int(size) + gap) + evaluate(index, known)
        return flat[executed]


def evaluate(expression: Any, known: Values) -> NDArray[np.int64]:
    """Value of an index expression or condition at all points."""
    if isinstance(expression, IntImm):
        return np.asarray(int(expression.value))
    if isinstance(expression, Var):
        return next(value for variable, value in reversed(known) if variable.same_as(expression))
    if isinstance(expression, Cast):
        return evaluate(expression.value, known)
    name = type(expression).__name__
    if name == "Not":
        return np.logical_not(evaluate(expression.a, known))
    a, b = evaluate(expression.a, known), evaluate(expression.b, known)
    operations: dict[Any, Any] = {Add: np.add, Sub: np.subtract, Mul: np.multiply, FloorDiv: np.floor_divide}
    operations |= {FloorMod: np.mod, Min: np.minimum, Max: np.maximum}
    by_name: dict[str, Any] = {
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
        "EQ": np.equal,
    }
    by_name |= {"NE": np.not_equal, "And": np.logical_and, "Or": np.logical_or}
    return operations.get(type(expression), by_name.get(name))(a, b)  # type: ignore[no-any-return,misc]


def placed_blocks(func: PrimFunc) -> dict[str, Placed]:
    """The leaf blocks by name."""
    found: dict[str, Placed] = {}

    def descend(node: Any, realizes: tuple[Any, ...], loops: tuple[For, ...]) -> None:
        inner: list[tuple[Any, tuple[For, ...]]] = []

        def walk(statement: Any, around: tuple[For, ...]) -> None:
            def loop(each: For, _visitor: Any) -> None:
                walk(each.body, (*around, each))

            def realize(each: SBlockRealize, _visitor: Any) -> None:
                inner.append((each, around))

            structural_visit(statement, [(For, loop), (SBlockRealize, realize)])

        walk(node, loops)
        if not inner and realizes:
            found[str(realizes[-1].block.name_hint)] = Placed(realizes, loops)
        for each, around in inner:
            descend(each.block.body, (*realizes, each), around)

    descend(func.body.block.body, (), ())
    return found


def common_loops(first: Placed, second: Placed) -> int:
    """Number of leading loops that two blocks share."""
    count = 0
    for a, b in zip(first.loops, second.loops, strict=False):
        if not a.same_as(b):
            break
        count += 1
    return count
