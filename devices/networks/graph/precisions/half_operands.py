"""Products and convolutions of float32 with operands of 16 bits, bfloat16 or float16, and sums in float32.

    matmul(x, w)    ->    matmul(astype(x, half), astype(w, half), out_dtype=float32)

Weights are converted at compile time. A value between two kernels is stored in 16 bits if all its readers accept that:
products, operators that pass values on (transposes, reshapes, slices, maximum pooling), and element-wise arithmetic,
which converts it back to float32 in registers. Everything else reads and computes float32: softmax, norms, other
reductions, exponentials, divisions, and operators without a rule here. Element-wise operators inside of a kernel
compute float32 too, so that a value is rounded once, when it is stored, and not between a product and its bias. Inputs
and outputs stay in float32.

The result looks like an imported network that was in this type from the start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by its name from here on
import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.precisions.products import is_product, products_of

_OPTIONS = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")
_HAND_ON = frozenset(
    f"relax.{name}"
    for name in (
        *("permute_dims", "reshape", "expand_dims", "squeeze", "flatten", "broadcast_to"),
        *("strided_slice", "take", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"),
    )
)
"""Operators whose result only has numbers of their first operand."""
_ELEMENT_WISE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "maximum", "minimum", "negative", "clip", "sigmoid", "tanh"),
        *("nn.relu", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu"),
    )
)
"""Element-wise operators that lose no accuracy with operands of 16 bits, apart from the operands' rounding."""


def with_half_operands(module: Any, dtype: str, chosen: Collection[int] | None = None) -> tuple[Any, int]:
    """Return ``module`` with the products of ``main`` in ``dtype``, and their number. ``chosen``: their positions in
    :func:`~devices.networks.graph.precisions.products.products_of`; None for all."""
    values = _StoredValues(module["main"], chosen)
    halved = with_main_visited(module, _OperandHalver(module, values, dtype))
    clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(clean)(halved), len(values.products)


class _StoredValues:
    """The values of a function that are stored in 16 bits."""

    def __init__(self, function: Any, chosen: Collection[int] | None) -> None:
        self._bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self._readers: dict[Any, list[Any]] = defaultdict(list)
        for binding in self._bindings:
            for variable in set(relax.analysis.free_vars(binding.value)):
                self._readers[variable].append(binding)
        #: The calls that become products of 16 bits.
        products = enumerate(products_of(function))
        self.products = {call for at, call in products if is_product(call) and (chosen is None or at in chosen)}
        #: The variables that are stored in 16 bits.
        self.stored: set[Any] = set()
        for binding in reversed(self._bindings):
            if self._is_stored(binding.var):
                self.stored.add(binding.var)

    def hands_on(self, binding: Any) -> bool:
        """Return true if a call passes on numbers of 16 bits."""
        return binding.var in self.stored and operator_name(binding.value) in _HAND_ON

    def _is_stored(self, variable: Any) -> bool:
        readers = self._readers[variable]
        # A value that is read outside of its block is not a dataflow variable.
        if not _is_float32(variable) or not isinstance(variable, relax.DataflowVar):
            return False
        takers = [reader for reader in readers if reader.value in self.products or self._hands_on(variable, reader)]
        others = [reader for reader in readers if reader not in takers]
        fits = all(operator_name(reader.value) in _ELEMENT_WISE and _is_float32(reader.var) for reader in others)
        # If only element-wise operators read a value, it is fused with them, and not stored.
        return fits and bool(takers)

    def _hands_on(self, variable: Any, reader: Any) -> bool:
        return self.hands_on(reader) and reader.value.args[0] == variable


def _is_float32(value: Any) -> bool:
    return isinstance(value.ty, relax.TensorType) and str(value.ty.dtype) == "float32"


@mutator
class _OperandHalver(PyExprMutator):  # type: ignore[misc]
    """Rewrites values that are stored in 16 bits."""

    def __init__(self, module: Any, values: _StoredValues, dtype: str) -> None:
        super().__init__(module)
        self._values = values
        self._dtype = dtype
        self._halves: dict[Any, Any] = {}
        """Values in 16 bits, by the variables and constants before the rewriting."""

    def visit_var_binding_(self, binding: Any) -> None:
        if self._values.hands_on(binding):
            call = binding.value
            others = [self.visit_expr(argument) for argument in call.args[1:]]
            moved = Call(call.op, [self._half(call.args[0]), *others], call.attrs, call.ty_args)
            self._halves[binding.var] = self.builder_.emit(moved)
            return
        super().visit_var_binding_(binding)
        if binding.var in self._values.stored:
            wide = super().visit_dataflow_var_(binding.var)
            self._halves[binding.var] = self.builder_.emit(relax.op.astype(wide, self._dtype))

    def visit_call_(self, call: Call) -> Any:
        if call not in self._values.products:
            return self.visit_expr_post_order(call)
        left, right = map(self._half, call.args)
        if operator_name(call) == "relax.matmul":
            return relax.op.matmul(left, right, out_dtype="float32")
        define = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
        options = {name: getattr(call.attrs, name) for name in _OPTIONS}
        return define(left, right, **options, out_dtype="float32")

    def visit_dataflow_var_(self, variable: Any) -> Any:
        """Return a variable for a reader of float32. A variable that is stored in 16 bits is converted for each reader,
        so that the conversion is part of the reader's kernel."""
        if variable not in self._values.stored:
            return super().visit_dataflow_var_(variable)
        return self.builder_.emit(relax.op.astype(self._halves[variable], "float32"))

    def _half(self, value: Any) -> Any:
        """Return a value of float32 in 16 bits, for a product or an operator that passes it on."""
        if value not in self._halves:
            if isinstance(value, GenericConst):
                half = relax.const(array_of(value.value).astype(np.dtype(self._dtype)), self._dtype)
            else:
                half = self.builder_.emit(relax.op.astype(self.visit_expr(value), self._dtype))
            self._halves[value] = half
        return self._halves[value]
