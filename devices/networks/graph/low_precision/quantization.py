"""Quantisation as arithmetic on floats: ``relax.quantize`` and ``relax.dequantize`` in terms of other operators.

    quantize(x)   = clip(round(x / scale) + zero, least, greatest), as an integer       (round: to even)
    dequantize(q) = (q - zero) * scale

A value that is quantised only to be dequantised with the same scale stays a float: ``clip(round(x / scale), least -
zero, greatest - zero) * scale``. Weights are dequantised when constants are folded. So convolutions and products in
between are computed in float32, in whatever layout is the best for them, and the rounding is an element-wise operator
that is fused with them. TVM's own lowering of the two operators has no rule for layouts. Its integer kernels use no
special instructions, and are slower than its kernels for float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.executables import calls
from devices.networks.graph.ir.main_function import with_main_visited

_QUANTIZE, _DEQUANTIZE = "relax.quantize", "relax.dequantize"


def quantizes(module: Any) -> bool:
    """Return true if ``main`` quantises or dequantises values."""
    names = {call.op.name for call in calls(module["main"].body) if isinstance(call.op, tvm.ir.Op)}
    return bool(names & {_QUANTIZE, _DEQUANTIZE})


def in_floats(module: Any) -> Any:
    """Return ``module`` with its quantisation rewritten as in this module's docstring."""
    return relax.transform.DeadCodeElimination(["main"])(with_main_visited(module, _InFloats(module)))


@mutator
class _InFloats(PyExprMutator):  # type: ignore[misc]
    """Rewrites the calls of ``relax.quantize`` and ``relax.dequantize`` with other operators."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
        self._floats: dict[tuple[Any, str], Any] = {}
        self._quantizations = {each.var: each.value for each in bindings if _is(each.value, _QUANTIZE)}

    def visit_call_(self, call: Call) -> Any:
        if _is(call, _QUANTIZE):
            return self._quantized(self.visit_expr_post_order(call))
        if _is(call, _DEQUANTIZE):
            return self._taken_back(call, self._quantization(call))
        return self.visit_expr_post_order(call)

    def _quantized(self, call: Call) -> Any:
        dtype = str(call.attrs.out_dtype)
        rounded = self._rounded(call)
        if not _is_zero(call.args[2]):
            rounded = self._emit(relax.op.add(rounded, self._along(call, 2)))
        return relax.op.astype(self._emit(relax.op.clip(rounded, *_bounds(dtype))), dtype)

    def _taken_back(self, call: Call, source: Call | None) -> Any:
        """Return :meth:`_dequantized`, computed once for all readers of the value that ``source`` quantises."""
        new = self.visit_expr_post_order(call)
        if source is None:
            return self._dequantized(new, None)
        key = (call.args[0], str(call.attrs.out_dtype))
        if key not in self._floats:
            self._floats[key] = self._emit(self._dequantized(new, self.visit_expr_post_order(source)))
        return self._floats[key]

    def _dequantized(self, call: Call, source: Call | None) -> Any:
        if source is not None:
            zero = float(source.args[2].value.numpy().reshape(-1)[0])
            least, greatest = (bound - zero for bound in _bounds(str(source.attrs.out_dtype)))
            shifted = self._emit(relax.op.clip(self._rounded(source), least, greatest))
        else:
            shifted = self._emit(relax.op.astype(call.args[0], "float32"))
            if not _is_zero(call.args[2]):
                shifted = self._emit(relax.op.subtract(shifted, self._along(call, 2)))
        result = relax.op.multiply(shifted, self._along(call, 1))
        wanted = str(call.attrs.out_dtype)
        return result if wanted == "float32" else relax.op.astype(self._emit(result), wanted)

    def _quantization(self, call: Call) -> Call | None:
        """Return the quantisation that ``call`` reverses, whose zero point is a single number. None if there is
        none."""
        source = self._quantizations.get(call.args[0])
        if source is None or not isinstance(source.args[2], GenericConst) or source.args[2].value.numpy().size != 1:
            return None
        pairs = list(zip(call.args[1:], source.args[1:], strict=True))
        same = all(tvm_ffi.structural_equal(ours, theirs) for ours, theirs in pairs)
        one_scale = all(int(extent) == 1 for extent in source.args[1].ty.shape)
        return source if same and (one_scale or call.attrs.axis == source.attrs.axis) else None

    def _rounded(self, call: Call) -> Any:
        data = call.args[0]
        if str(data.ty.dtype) != "float32":
            data = self._emit(relax.op.astype(data, "float32"))
        return self._emit(relax.op.round(self._emit(relax.op.divide(data, self._along(call, 1)))))

    def _along(self, call: Call, at: int) -> Any:
        """Return the scale or the zero point of ``call`` in float32, in a shape that broadcasts along the call's
        axis."""
        value, rank = call.args[at], len(call.args[0].ty.shape)
        extents = [int(extent) for extent in value.ty.shape]
        count = int(np.prod(extents))
        shape = () if count == 1 else tuple(count if axis == call.attrs.axis % rank else 1 for axis in range(rank))
        if isinstance(value, GenericConst):
            return relax.const(value.value.numpy().astype(np.float32).reshape(shape), "float32")
        if str(value.ty.dtype) != "float32":
            value = self._emit(relax.op.astype(value, "float32"))
        return value if tuple(extents) == shape else self._emit(relax.op.reshape(value, shape))

    def _emit(self, value: Any) -> Any:
        return self.builder_.emit(value)


def _is(expression: Any, operator: str) -> bool:
    return isinstance(expression, Call) and isinstance(expression.op, tvm.ir.Op) and expression.op.name == operator


def _is_zero(value: Any) -> bool:
    return isinstance(value, GenericConst) and not value.value.numpy().any()


def _bounds(dtype: str) -> tuple[float, float]:
    """Return the least and the greatest float32 that fit ``dtype``."""
    limits = np.iinfo(dtype)
    greatest = np.float32(limits.max)
    if int(greatest) > limits.max:
        greatest = np.nextafter(greatest, np.float32(0))
    return float(limits.min), float(greatest)
