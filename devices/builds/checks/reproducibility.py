"""Recognition of programs whose correct kernels agree to the last bit.

Every operation of IEEE 754 has one correct result. Correct kernels can differ only if a sum is computed in another
order, if a product and a sum become one instruction that rounds once, if a function is approximated, or if a chain of
operations in a 16-bit type is computed in float32.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Call, TensorLoad
from tvm.tirx import Add, Cast, Div, FloorDiv, FloorMod, Max, Min, Mod, Mul, Select, Sub
from tvm_ffi import structural_walk

from devices.builds.checks.program_reading import ProgramReading
from devices.builds.checks.program_statements import MANTISSA_BITS, call_name, dtype_of

_HALVES = ("float16", "bfloat16")
# Functions of floats with only one correct result.
_EXACT_CALLS = {
    "clamped",
    "floor",
    "ceil",
    "trunc",
    "round",
    "nearbyint",
    "fabs",
    "isnan",
    "isinf",
    "isfinite",
    "if_then_else",
    "likely",
}


def is_reproducible(program: ProgramReading, exact_sums: bool = False) -> bool:
    """Return true if all correct kernels of ``program`` give the same bits, except that a NaN may have different bits.
    ``exact_sums``: true for inputs on which no sum is rounded."""
    return _Reproducibility(program, exact_sums).holds()


def compares_zeros(program: ProgramReading) -> bool:
    """Return true if correct kernels also agree on the sign of each zero. A maximum or minimum of 0 and -0 may be
    either of them."""
    return not any(s.points > 1 and s.dtype in MANTISSA_BITS for s in program.statements)


class _Reproducibility:
    def __init__(self, program: ProgramReading, exact_sums: bool) -> None:
        self._program = program
        self._exact_sums = exact_sums
        self._products: set[int] = set()  # buffers whose values may be products
        self._roundings: dict[int, int] = {}  # of each buffer's values: consecutive roundings to 16 bits

    def holds(self) -> bool:
        for statement in self._program.statements:
            target, value = statement.target, statement.value
            summed = statement.terms > 0 and statement.dtype in MANTISSA_BITS
            if summed and self._exact_sums:  # with any terms: nothing was rounded so far
                continue
            if summed or not self._operations_are_exact(value, target):
                return False
            if self._may_be_product(value):
                self._products.add(target)
            self._roundings[target] = max(self._roundings.get(target, 0), self._depth(value))
        return max(self._roundings.values(), default=0) <= 1

    def _operations_are_exact(self, value: Any, target: int) -> bool:
        found = True

        def look(node: Any) -> None:
            nonlocal found
            if dtype_of(node) not in MANTISSA_BITS:
                return
            if isinstance(node, Add | Sub):
                found &= not (self._may_be_product(node.a) or self._may_be_product(node.b))
            elif isinstance(node, FloorDiv | FloorMod | Mod):
                found = False
            elif isinstance(node, Call):
                found &= call_name(node) in _EXACT_CALLS
            if isinstance(node, Add | Sub | Mul | Div) and any(
                isinstance(each, TensorLoad) and hash(each.source) == target for each in (node.a, node.b)
            ):
                found = False  # a product or sum over many iterations, in any order

        kinds = (Add, Sub, Mul, Div, FloorDiv, FloorMod, Mod, Call)
        structural_walk(value, [(kind, look) for kind in kinds])
        return found

    def _may_be_product(self, value: Any) -> bool:
        match value:
            case Mul() | Div():
                return True
            case TensorLoad():
                return hash(value.source) in self._products
            case Cast():
                return self._may_be_product(value.value)
            case Max() | Min():
                return self._may_be_product(value.a) or self._may_be_product(value.b)
            case Select():
                return self._may_be_product(value.true_value) or self._may_be_product(value.false_value)
            case Call() if call_name(value) == "if_then_else":
                return any(self._may_be_product(argument) for argument in value.args[1:])
        return False

    def _depth(self, value: Any) -> int:
        """Return the largest number of consecutive roundings to 16 bits in a value."""
        match value:
            case TensorLoad():
                return self._roundings.get(hash(value.source), 0)
            case Cast():
                return self._depth(value.value) + (dtype_of(value) in _HALVES and dtype_of(value.value) not in _HALVES)
            case Add() | Sub() | Mul() | Div():
                return max(self._depth(value.a), self._depth(value.b)) + (dtype_of(value) in _HALVES)
            case Max() | Min():
                return max(self._depth(value.a), self._depth(value.b))
            case Select():
                return max(self._depth(value.true_value), self._depth(value.false_value))
            case Call():
                return max((self._depth(argument) for argument in value.args), default=0)
        return 0
