"""Products of one input with several constant matrices (query, key and value of attention) as one product.

    x @ A + a, x @ B + b    ->    y = x @ [A B] + [a b];    y[..., :n], y[..., n:]

One product of a wide matrix has more to run in parallel than several of narrow ones, and reads its input once. Its
result is read through slices, so this is done only if slices cost nothing: every reader must already be a copy (a
transpose or a slice, also of a view), into which TVM fuses the slice. An element-wise reader would otherwise have been
fused into the product's own kernel.

TVM's CombineParallelMatmul matches weights that are variables, not constants, and takes all products of an input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.ir.tensors import Array, shape_of

_COPIES = ("relax.permute_dims", "relax.strided_slice")
_Readers = Mapping[Any, list[Any]]


@dataclass(frozen=True)
class _Product:
    """A product ``astype(source @ weight + bias, dtype)``."""

    source: Any
    weight: Any
    bias: Any | None
    sums: str
    """Type of the result of ``@``."""
    end: Any
    """Variable that the product is bound to."""

    @property
    def columns(self) -> int:
        return int(self.weight.ty.shape.values[1])

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that is the same for products that can be combined."""
        return self.source, str(self.weight.ty.dtype), self.sums, str(self.end.ty.dtype)


def combine_products(module: Any) -> Any:
    """Return ``module`` with the products of ``main`` that share their input combined."""
    groups = [group for group in _products(module["main"]).values() if len(group) > 1]
    if not groups:
        return module
    combined = with_main_visited(module, _ProductCombiner(module, groups))
    return relax.transform.DeadCodeElimination(["main"])(combined)


def _products(main: Any) -> dict[tuple[Any, ...], list[_Product]]:
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    readers: dict[Any, list[Any]] = defaultdict(list)
    for binding in bindings:
        for variable in set(relax.analysis.free_vars(binding.value)):
            readers[variable].append(binding)
    readers[main.body.body].append(None)
    found: dict[tuple[Any, ...], list[_Product]] = defaultdict(list)
    for binding in bindings:
        product = _product(binding, readers)
        if product is not None:
            found[product.key].append(product)
    return found


def _product(binding: Any, readers: _Readers) -> _Product | None:
    """Return the product that begins with ``binding``; None if there is none, or if it should stay alone."""
    call, end, bias = binding.value, binding.var, None
    if not _is(call, "relax.matmul") or not isinstance(call.args[0], relax.Var):
        return None
    weight = call.args[1]
    shape = shape_of(weight) if isinstance(weight, GenericConst) else None
    if shape is None or len(shape) != 2 or end.ty.ndim < 2:
        return None
    after = _only_reader(end, readers)
    if after is not None and _is(after.value, "relax.add") and after.var.ty.ndim == end.ty.ndim:
        others = [argument for argument in after.value.args if argument != end]
        # A constant with one value for each column adds no row.
        if len(others) == 1 and isinstance(others[0], GenericConst) and _per_column(others[0], shape[1]):
            bias, end = others[0], after.var
            after = _only_reader(end, readers)
    if after is not None and _is(after.value, "relax.astype"):
        end = after.var
    copied = all(_copies(reader, readers) for reader in readers[end])
    return _Product(call.args[0], weight, bias, str(call.ty.dtype), end) if copied else None


def _only_reader(variable: Any, readers: _Readers) -> Any | None:
    return readers[variable][0] if len(readers[variable]) == 1 else None


def _per_column(constant: Any, columns: int) -> bool:
    shape = shape_of(constant) or ()
    return shape[-1:] == (columns,) and all(extent == 1 for extent in shape[:-1])


def _copies(reader: Any, readers: _Readers) -> bool:
    """Return true if a reader, or the readers of its view, only copy the input in another order."""
    if reader is None:  # the result of the network
        return False
    if _is(reader.value, "relax.reshape"):
        return all(each is not None and _is(each.value, *_COPIES) for each in readers[reader.var])
    return _is(reader.value, *_COPIES)


def _is(expression: Any, *names: str) -> bool:
    return isinstance(expression, Call) and isinstance(expression.op, tvm.ir.Op) and expression.op.name in names


@mutator
class _ProductCombiner(PyExprMutator):  # type: ignore[misc]
    """Binds the end of every product to its slice of the combined one, which is computed before the first of them."""

    def __init__(self, module: Any, groups: list[list[_Product]]) -> None:
        super().__init__(module)
        self._group = {product.end: group for group in groups for product in group}
        self._combined: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        group = self._group.get(binding.var)
        if group is None:
            super().visit_var_binding_(binding)
            return
        first = group[0].end
        if first not in self._combined:
            self._combined[first] = self._combine(group)
        before = [product.end for product in group].index(binding.var)
        begin = sum(product.columns for product in group[:before])
        axis = binding.var.ty.ndim - 1
        part = relax.op.strided_slice(self._combined[first], [axis], [begin], [begin + group[before].columns])
        super().visit_var_binding_(relax.VarBinding(binding.var, self.builder_.normalize(part)))

    def _combine(self, group: list[_Product]) -> Any:
        product = group[0]
        weight = np.concatenate([array_of(each.weight.value) for each in group], axis=1)
        source = self.visit_expr(product.source)
        result = self.builder_.emit(relax.op.matmul(source, _constant(weight), out_dtype=product.sums))
        biases = [None if each.bias is None else array_of(each.bias.value).reshape(-1) for each in group]
        known = [bias for bias in biases if bias is not None]
        if known:
            widths = [each.columns for each in group]
            parts = [
                np.zeros(n, known[0].dtype) if bias is None else bias for n, bias in zip(widths, biases, strict=True)
            ]
            result = self.builder_.emit(relax.op.add(result, _constant(np.concatenate(parts))))
        dtype = str(product.end.ty.dtype)
        return result if dtype == product.sums else self.builder_.emit(relax.op.astype(result, dtype))


def _constant(array: Array) -> Any:
    return relax.const(np.asarray(array, order="C"), str(array.dtype))
