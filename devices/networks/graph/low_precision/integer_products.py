"""Products of rounded numbers in integers.

After :mod:`devices.networks.graph.low_precision.quantization` a quantised network computes with floats that are whole
numbers times a scale. A convolution or product of such data with constant weights that are, in each output channel,
whole numbers of eight bits times a factor, is

    sum_k (s * i[k]) * (t[o] * q[k, o])  =  s * t[o] * (sum_k u[k] * q[k, o] + least * sum_k q[k, o])

with the whole numbers ``i`` from ``least`` to ``least + 255`` and ``u = i - least``, unsigned bytes. The sum is exact
in 32 bits, and an operator of :mod:`devices.sketches.byte_operators` computes several terms of it at once: The target
decides which operator, and whether ``u`` is ``i - least`` or a signed byte, 128 less. Operators after the product
(bias, rounding, ReLU, residual sums) are fused with it as before, and tensors between kernels have one byte for each
number.

In a product of two computed values (attention) ``q`` is the signed byte of the right value ``j = q + shift``, and

    sum_k i[k] * j[k]  =  sum_k u[k] * q[k] + least * sum_k j[k] + shift * sum_k u[k]

Kernels before the product pack ``q`` and compute the two sums, unless their factors are zero.

If the sum, plus constants, is rounded to new steps, everything in between becomes one product and one sum for each
element: ``round(F[o] * sum + B[o])``. The framework's own kernels have one product as well. A division by the steps
becomes a product with their reciprocal. Both may change a result that lies halfway between two steps, by one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, te
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.passes.byte_instructions import fast_integer_dot, multiplies_bytes_in_tiles
from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import constant, operator_name
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.ir.tensors import shape_of
from devices.networks.graph.low_precision.byte_forms import ByteForm, byte_form
from devices.networks.graph.low_precision.byte_kernels import (
    column_sums,
    dequantize,
    from_signed,
    quantize,
    requantize,
    row_sums,
    scale,
    widen,
)
from devices.networks.graph.low_precision.grids import ComputedProduct, FloatProduct, Grid, Grids
from devices.networks.graph.low_precision.op_patterns import EPILOGUE_FUSABLE
from devices.networks.graph.low_precision.packed_sums import summed_product
from devices.sketches.byte_operators import IntegerDot

_SMALLEST_STEP = 2.0**-100
"""Smallest step whose reciprocal, and products with it, are normal numbers of float32."""


def integer_products(module: Any, target: tvm.target.Target, grids: Grids | None = None) -> Any:
    """Return ``module`` with the products of this module's docstring in integers, if the target has an instruction for
    them. ``grids``: the grids of its ``main``, if they are known already."""
    dot = fast_integer_dot(target)
    if dot is None:
        return module
    grids = Grids(module["main"]) if grids is None else grids
    if not grids.has_products:
        return module
    rewritten = with_main_visited(module, _IntegerProducts(module, grids, dot, multiplies_bytes_in_tiles(target)))
    clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(clean)(rewritten)


@dataclass(frozen=True)
class ProductCounts:
    """The products of a quantised network: in integers, and in floats."""

    integers: int = 0
    """Number of products that are computed in integers."""
    floats: tuple[FloatProduct, ...] = ()
    """Products that are computed in floats."""


def count_products(grids: Grids, target: tvm.target.Target) -> ProductCounts:
    """Return how :func:`integer_products` computes the products of a quantised network."""
    if fast_integer_dot(target) is not None:
        return ProductCounts(grids.integer_products, grids.float_products)
    reason = "the device has no instruction for products of bytes"
    return ProductCounts(0, tuple(replace(each, reason=reason) for each in grids.products))


@dataclass(frozen=True)
class _Line:
    """Integer sums times factors plus offsets (one of each per output channel), clipped to two bounds."""

    total: Any
    factors: npt.NDArray[np.float64]
    offsets: npt.NDArray[np.float64]
    low: float = -np.inf
    high: float = np.inf

    def then(self, call: Call, operand: Any) -> _Line | None:
        """Return the line after a call of an operator on it and ``operand``, a constant or None. None if the result is
        no line."""
        name = operator_name(call)
        if name == "relax.nn.relu":
            return replace(self, low=max(self.low, 0.0), high=max(self.high, 0.0))
        if name == "relax.clip":
            low, high = (float(bound.value) for bound in call.args[1:])
            return replace(self, low=min(max(self.low, low), high), high=max(min(self.high, high), low))
        if name != "relax.add" or operand is None or (self.low, self.high) != (-np.inf, np.inf):
            return None
        array = array_of(operand.value)
        # One number for each channel, the last axis.
        if array.size not in (1, len(self.factors)) or array.shape[-1:] not in ((), (array.size,)):
            return None
        if array.ndim > self.total.ty.ndim:
            return None
        return replace(self, offsets=self.offsets + array.reshape(-1))


def _number(value: float) -> Any:
    return constant(np.array([value], np.float32))


def _zero_point(grid: Grid) -> Any:
    """Return the byte that stands for zero on a grid, as a constant. None if it is 0."""
    return _number(-grid.least) if grid.least else None


@mutator
class _IntegerProducts(PyExprMutator):  # type: ignore[misc]
    """Rewrites products in integers. Every reader of a value on a grid reads its bytes."""

    def __init__(self, module: Any, grids: Grids, dot: IntegerDot, tensor_cores: bool) -> None:
        super().__init__(module)
        self._grids = grids
        self._dot = dot
        self._tensor_cores = tensor_cores
        self._bytes: dict[Any, Any] = {}
        """Unsigned bytes of the values on a grid, by the variables before the rewriting."""
        self._lines: dict[Any, _Line] = {}
        """Products whose steps are known at compile time."""
        self._operands: dict[tuple[Any, str], Any] = {}
        """Right operands that are computed, by the variables before the rewriting and the kernels that make them."""

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        if self._grids.of(binding.var) is not None:
            self._bytes[binding.var] = self._unsigned(binding)

    # Only variables of a dataflow block are replaced. An output is also read outside of the block, where nothing can be
    # emitted: its readers get the floats.
    def visit_dataflow_var_(self, variable: Any) -> Any:
        return self._read(variable)

    def visit_call_(self, call: Call) -> Any:
        computed = self._grids.computed_product(call)
        if computed is not None:
            return self._of_computed(call, computed)
        product = self._grids.product(call)
        if product is None:
            return self.visit_expr_post_order(call)
        grid, numbers = self._grids.of(call.args[0]), product.numbers
        assert grid is not None
        rows = math.prod(shape_of(call) or ()) // numbers.shape[-1]
        form = self._form(call, grid, rows, product.terms, product.groups)
        least = grid.least - form.least
        total = self._sums_of_products(
            product.name,
            lambda data, weights: product.define(data, weights, form.packing),
            self._bytes[call.args[0]],
            form.weights(numbers),
        )
        sums = numbers.sum(axis=tuple(range(numbers.ndim - 1)), dtype=np.int32)
        if grid.zero is None and grid.factor is None and grid.dtype != "int32":
            factors = grid.scale * product.factors
            # Computed for unsigned bytes on every target, so that the rounded offset is the same on all.
            unsigned = self._plus(total, (least - grid.least) * sums)
            self._lines[call] = _Line(unsigned, factors, factors * grid.least * sums)
        total = self._plus(total, least * sums)
        if grid.zero is not None:
            zero = self._cast(self.visit_expr(grid.zero), "int32")
            total = self._emit(relax.op.subtract(total, self._emit(relax.op.multiply(zero, constant(sums)))))
        if grid.dtype == "int32":
            return total
        result = self._kernel(scale, total, constant((grid.scale * product.factors).astype(np.float32)))
        return result if grid.factor is None else relax.op.multiply(result, self.visit_expr(grid.factor))

    def _of_computed(self, call: Call, product: ComputedProduct) -> Any:
        """Return the product of two computed values."""
        left, right = (self._bytes[each] for each in call.args[:2])
        # The rows of one matrix: each matrix of a batch has its own right operand.
        rows, columns = (shape_of(call) or ())[-2:]
        form = self._form(call, product.left, rows, product.terms)
        operand = (call.args[1], form.operand_name)
        if operand not in self._operands:
            kernel = self.builder_.call_te(form.operand, right, primfunc_name_hint=form.operand_name)
            self._operands[operand] = self._emit(kernel)
        total = self._sums_of_products(
            "matmul",
            lambda data, weights: summed_product(data, weights, form.packing),
            left,
            self._operands[operand],
        )
        least, shift = product.left.least - form.least, product.right.least + 128
        # The two sums below are of unsigned bytes, not of ``j`` and ``u``. This is the constant that they lack.
        rest = product.terms * (least * product.right.least + shift * form.least)
        for factor, operand, define in ((least, right, column_sums), (shift, left, row_sums)):
            if factor:
                numbers = (constant(np.array([number], np.int32)) for number in (factor, rest))
                total = self._emit(relax.op.add(total, self._kernel(define, operand, *numbers)))
                rest = 0
        line = _Line(total, np.full(columns, product.left.scale * product.right.scale), np.zeros(columns))
        self._lines[call] = line
        return self._kernel(scale, total, constant(line.factors.astype(np.float32)))

    def _form(self, call: Call, grid: Grid, rows: int, terms: int, groups: int = 1) -> ByteForm:
        """Return the form of a product whose data is on ``grid``. The other arguments are those of
        :func:`byte_form`."""
        columns = (shape_of(call) or ())[-1]
        return byte_form(
            -grid.least, self._dot, self._tensor_cores, rows=rows, terms=terms, columns=columns, groups=groups
        )

    def _unsigned(self, binding: Any) -> Any:
        """Return the bytes of a value on a grid."""
        grid = self._grids.of(binding.var)
        assert grid is not None
        if grid.moved:
            call = binding.value
            others = [self.visit_expr(argument) for argument in call.args[1:]]
            return self._emit(Call(call.op, [self._bytes[grid.source], *others], call.attrs, call.ty_args))
        if grid.source is not None:
            return self._bytes[grid.source]
        if operator_name(binding.value) == "relax.astype":
            given = self.visit_expr(binding.value.args[0])
            return given if grid.least == 0 else self._emit(from_signed(given))
        (value,) = self._grids.known(binding.value.args[0]).args
        divided = self._grids.known(value)
        step = self._grids.number(divided) if operator_name(divided) == "relax.divide" else None
        if step is not None and _SMALLEST_STEP <= step <= 1 / _SMALLEST_STEP:
            value = divided.args[0]
        else:
            step = 1.0
        line = self._line(value)
        if line is None:
            inverse, levels = _number(1 / step), grid.most - grid.least
            return self._kernel(quantize, self.visit_expr(value), inverse, _zero_point(grid), levels)
        per_channel = (constant((each / step).astype(np.float32)) for each in (line.factors, line.offsets))
        bounds = (np.clip(np.rint(bound / step), grid.least, grid.most) for bound in (line.low, line.high))
        low, high = (float(bound) - grid.least for bound in bounds)
        return self._kernel(requantize, line.total, *per_channel, _zero_point(grid), low, high)

    def _line(self, value: Any) -> _Line | None:
        """Return the line that computes a value from the sums of a product. None if there is no such line, or if
        anything else reads a value in between."""
        if not self._grids.is_read_once(value):
            return None
        call = self._grids.known(value)
        if not isinstance(call, Call) or not call.args:
            return None
        if call in self._lines:
            return self._lines[call]
        operands = list(call.args[:2]) if operator_name(call) == "relax.add" else [call.args[0]]
        constants = [each for each in map(self._grids.known, operands) if isinstance(each, GenericConst)]
        before = [each for each in operands if not isinstance(self._grids.known(each), GenericConst)]
        line = self._line(before[0]) if len(before) == 1 else None
        return None if line is None else line.then(call, constants[0] if constants else None)

    def _read(self, variable: Any) -> Any:
        """Return a variable for one reader. If it is held as bytes, convert them to floats."""
        if variable not in self._bytes:
            return self.visit_expr_post_order(variable)
        grid = self._grids.of(variable)
        assert grid is not None
        if grid.zero is None and grid.scale == 1:
            value = self._kernel(widen, self._bytes[variable], grid.least, grid.dtype)
        elif grid.zero is None:
            value = self._kernel(dequantize, self._bytes[variable], _number(grid.scale), _zero_point(grid))
        else:
            # The network may have changed the type after the subtraction.
            numbers = self._kernel(widen, self._bytes[variable], grid.least, str(grid.zero.ty.dtype))
            difference = self._emit(relax.op.subtract(numbers, self.visit_expr(grid.zero)))
            value = self._cast(difference, grid.dtype)
            if grid.scale != 1:
                value = self._emit(relax.op.multiply(value, relax.const(grid.scale, "float32")))
        return value if grid.factor is None else self._emit(relax.op.multiply(value, self.visit_expr(grid.factor)))

    def _sums_of_products(self, name: str, define: Callable[..., te.Tensor], data: Any, weights: Any) -> Any:
        attributes = {"op_pattern": EPILOGUE_FUSABLE}
        kernel = self.builder_.call_te(define, data, weights, primfunc_name_hint=name, primfunc_attrs=attributes)
        return self._emit(kernel)

    def _plus(self, total: Any, numbers: npt.NDArray[np.int32]) -> Any:
        """Return integer sums plus a number for each channel."""
        return self._emit(relax.op.add(total, constant(numbers))) if numbers.any() else total

    def _cast(self, value: Any, dtype: str) -> Any:
        return value if str(value.ty.dtype) == dtype else self._emit(relax.op.astype(value, dtype))

    def _kernel(self, define: Callable[..., te.Tensor], *operands: Any) -> Any:
        return self._emit(self.builder_.call_te(define, *operands, primfunc_name_hint=define.__name__))

    def _emit(self, value: Any) -> Any:
        return self.builder_.emit(value)
