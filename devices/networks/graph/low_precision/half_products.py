"""Products of 16-bit numbers with sums in float32. Products of bfloat16 compute two terms at a time.

A product or convolution of bfloat16 reads its weights, or its second operand, in pairs: one number holds two
neighbouring terms of the sum (:func:`devices.sketches.half_operators.pair`). Constants are packed when the network is
compiled, other values by the kernel that makes or moves them. The data is read unchanged. A processor with an
instruction for :func:`devices.sketches.half_operators.dot2` is twice as fast with it as in float32; other processors
are as fast as in float32 and read half as much. Operators after a product are fused with it as before: sums are rounded
to bfloat16 where the network rounds them, and tensors between kernels have 16 bits for each number.

A product of float16 converts each number of its data once, before the sum, and not for every column of the result.
Weights are converted as vectors when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import constant, operator_name
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.ir.tensors import shape_of
from devices.networks.graph.low_precision.op_patterns import EPILOGUE_FUSABLE
from devices.networks.graph.low_precision.packed_sums import Packing, Window, packed, summed_convolution, summed_product
from devices.sketches.half_operators import PAIRED, dot2, pair

_TERMS = 2
_CONVOLUTIONS = frozenset(f"relax.nn.conv{n}d" for n in (1, 2, 3))
_PRODUCT = "relax.matmul"


def half_products(module: Any, target: tvm.target.Target) -> Any:
    """Return ``module`` with its products in the forms of this module's docstring, for a CPU."""
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    if target.kind.name != "llvm" or all(_form(binding.value) is None for binding in bindings):
        return module
    rewritten = with_main_visited(module, _HalfProducts(module))
    clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(clean)(rewritten)


def _form(value: Any) -> Packing | None:
    """Return the packing of a product. None for everything else."""
    name = operator_name(value)
    if name != _PRODUCT and name not in _CONVOLUTIONS:
        return None
    operands = value.args[:2]
    shapes, types = [shape_of(each) for each in operands], {str(each.ty.dtype) for each in operands}
    form = _FORMS.get(types.pop())
    if form is None or types or None in shapes:
        return None
    if name == _PRODUCT:
        return form if all(len(shape or ()) >= 2 for shape in shapes) else None
    window, weight = Window.of(value), operands[1]
    if window is None:
        return None
    # If a group has an odd number of terms, as in a depthwise convolution, a pair would span two groups.
    whole = window.groups == 1 or int(weight.ty.shape.values[-2]) % form.terms == 0
    read = form.terms == 1 or isinstance(weight, GenericConst)
    return form if whole and read else None


@mutator
class _HalfProducts(PyExprMutator):  # type: ignore[misc]
    """Rewrites products with the packings of their operands."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._pairs: dict[Any, Any] = {}
        """Packed values, by the variables of the unpacked values."""

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        form = _form(call)
        if form is None:
            return call
        name, (data, weights) = operator_name(call), call.args[:2]
        define = _product(form) if name == _PRODUCT else _convolution(call, form)
        total = self._kernel(
            name.rpartition(".")[2], define, data, self._paired(weights) if form == _PAIRS else weights
        )
        dtype = str(call.ty.dtype)
        return total if dtype == "float32" else relax.op.astype(self.builder_.emit(total), dtype)

    def _kernel(self, name: str, define: Callable[..., te.Tensor], *operands: Any) -> Any:
        attributes = {"op_pattern": EPILOGUE_FUSABLE}
        return self.builder_.call_te(define, *operands, primfunc_name_hint=name, primfunc_attrs=attributes)

    def _paired(self, value: Any) -> Any:
        """Return the second operand of a product, packed in pairs along its second-to-last axis."""
        if isinstance(value, GenericConst):
            return constant(packed(array_of(value.value), _TERMS))
        if value not in self._pairs:
            self._pairs[value] = self.builder_.emit(
                self.builder_.call_te(_rows_in_pairs, value, primfunc_name_hint="pairs")
            )
        return self._pairs[value]


def _convolution(call: Call, form: Packing) -> Callable[..., te.Tensor]:
    window = Window.of(call)
    assert window is not None
    return lambda data, weights: summed_convolution(data, weights, window, form)


def _product(form: Packing) -> Callable[..., te.Tensor]:
    return lambda data, weights: summed_product(data, weights, form)


def _of_data(data: te.Tensor, at: Sequence[Any], group: Any) -> Any:
    return _two(lambda place: data[(*at, place)], int(data.shape[-1]), group)


def _rows_in_pairs(data: te.Tensor) -> te.Tensor:
    """Return ``(..., k, n)`` as ``(..., ceil(k / 2), n)``, as :func:`packed` does."""
    *outer, count, columns = (int(extent) for extent in data.shape)

    def pairs(*at: Any) -> Any:
        return _two(lambda row: data[(*at[:-2], row, at[-1])], count, at[-2])

    return te.compute((*outer, -(-count // _TERMS), columns), pairs, name="pairs")


def _two(number: Callable[[Any], Any], count: int, group: Any) -> Any:
    """Return pair ``group`` of ``count`` numbers. After the last number follows zero."""
    second = group * _TERMS + 1
    value = number(second)
    if count % _TERMS:
        value = tirx.if_then_else(second < count, value, tirx.const(0.0, PAIRED))
    return pair(number(group * _TERMS), value)


_PAIRS = Packing(_TERMS, _of_data, tirx.const(0, "int32"), dot2)
_WIDE = Packing(
    terms=1,
    group=lambda data, at, place: data[(*at, place)].astype("float32"),
    nothing=tirx.const(0.0, "float32"),
    multiply=lambda number, weight: number * weight.astype("float32"),
    once=True,
)
_FORMS = {PAIRED: _PAIRS, "float16": _WIDE}
