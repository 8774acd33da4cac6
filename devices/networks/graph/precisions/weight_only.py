"""Weight-only quantisation: constant matrices in int8, with a scale for each output channel.

    y[i, j] = scale[j] * sum_k x[i, k] * float32(q[k, j]),    scale[j] = max_k |w[k, j]| / 127,    q = round(w / scale)

A product of few rows, as in decoding, takes the time of reading its weights, and int8 is a quarter to read. The kernel
converts each weight in a register. The scale does not depend on ``k``, so it is applied to the sum.

A product of many rows uses each weight many times: its time is that of its arithmetic, and converting weights would add
to it. It stays in float32, without an error. One read of a weight of 4 bytes for :data:`MOST_ROWS` rows gives 8
operations for each byte. The CPUs that this was measured on compute 8 operations in the time of reading a byte from
memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import constant, operator_name
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.ir.tensors import Array, shape_of
from devices.networks.graph.low_precision.op_patterns import EPILOGUE_FUSABLE
from devices.networks.graph.precisions.products import MATMUL, is_product, products_of

OPERATIONS_PER_BYTE = 8
"""Operations of float32 in the time of reading a byte from memory."""
MOST_ROWS = 16
"""Most rows of a product whose time is that of reading its weights: two operations for each weight and row."""
_LARGEST = 127


def weight_only_products(module: Any, chosen: Collection[int] | None = None) -> tuple[Any, int]:
    """Return ``module`` with the products of this module's docstring in ``main``, and their number. ``chosen``: their
    positions in :func:`~devices.networks.graph.precisions.products.products_of`; None for all."""
    quantizer = _WeightQuantizer(module, module["main"], chosen)
    replaced = with_main_visited(module, quantizer)
    clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(clean)(replaced), quantizer.changed


def takes_its_weights_time(call: Call, weight: Any) -> bool:
    """Return true for a product of float32 whose time is that of reading its weights. ``weight``: the value that its
    second operand is bound to."""
    if operator_name(call) != MATMUL or not is_product(call) or not isinstance(weight, GenericConst):
        return False
    shape = shape_of(call.args[0])
    return bool(shape) and len(shape_of(weight) or ()) == 2 and math.prod((shape or ())[:-1]) <= MOST_ROWS


def quantized(weight: Array) -> tuple[Array, Array] | None:
    """Return a matrix ``(k, n)`` as numbers of int8, and the scale of each of its ``n`` columns. The numbers are from
    -127 to 127, rounded to even. None if the matrix has NaN or infinities."""
    if not np.isfinite(weight).all():
        return None
    scales = (np.abs(weight).max(axis=0) / np.float32(_LARGEST)).astype(np.float32)
    scales[scales == 0] = 1
    numbers = np.rint(weight / scales)
    return np.clip(numbers, -_LARGEST, _LARGEST).astype(np.int8), scales


@mutator
class _WeightQuantizer(PyExprMutator):  # type: ignore[misc]
    """Rewrites products with weights of int8, and counts them."""

    def __init__(self, module: Any, function: Any, chosen: Collection[int] | None) -> None:
        super().__init__(module)
        self._products = {call for at, call in enumerate(products_of(function)) if chosen is None or at in chosen}
        bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self._bound = {each.var: each.value for each in bindings}
        self._weights: dict[Any, tuple[Any, Any]] = {}  # a weight that several products share stays one
        self.changed = 0

    def visit_call_(self, call: Call) -> Any:
        data = self.visit_expr_post_order(call)
        weight = self._weight(call) if call in self._products else None
        if weight is None:
            return data
        self.changed += 1
        numbers, scales = weight
        total = self.builder_.emit(
            self.builder_.call_te(
                _weight_only_matmul,
                data.args[0],
                numbers,
                primfunc_name_hint="weight_only_matmul",
                primfunc_attrs={"op_pattern": EPILOGUE_FUSABLE},
            )
        )
        return relax.op.multiply(total, scales)

    def _weight(self, call: Call) -> tuple[Any, Any] | None:
        """Return the int8 weights and the scales of a product. None if it stays in float32."""
        weight: Any = self._bound.get(call.args[1], call.args[1])
        if not takes_its_weights_time(call, weight):
            return None
        if weight not in self._weights:
            found = quantized(array_of(weight.value))
            if found is None:
                return None
            self._weights[weight] = (constant(found[0]), constant(found[1]))
        return self._weights[weight]


def _weight_only_matmul(data: te.Tensor, numbers: te.Tensor) -> te.Tensor:
    """Return the product of data with numbers of int8, each of which is converted to float32 when it is used."""
    depth, columns = numbers.shape
    k = te.reduce_axis((0, depth), name="k")

    def total(*at: Any) -> Any:
        return te.sum(data[(*at[:-1], k)] * numbers[k, at[-1]].astype("float32"), axis=k)

    return te.compute((*data.shape[:-1], columns), total, name="weight_only_matmul")
