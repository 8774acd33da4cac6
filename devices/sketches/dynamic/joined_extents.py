"""Conversion of kernels over the product of two dynamic extents to kernels over one extent.

    x.reshape(batch * tokens, width) @ weight          becomes a kernel over the extent  batch.tokens

Views join samples and tokens to rows. If a kernel depends on the product only, and on neither extent alone, the product
is its number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import SBlock
from tvm.tirx import Mul, PrimFunc, Var, const
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map, structural_walk

from devices.sketches.dynamic.rows import dynamic_extents, tensors

_JOINED = "."
"""Separator between the names of the extents of a product. Names of dimensions do not contain it."""


def join_extents(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which kernels over the product of two extents are kernels over one extent, with the same
    parameters."""
    functions = {
        variable: (_joined(function) if isinstance(function, PrimFunc) else None) or function
        for variable, function in module.functions.items()
    }
    return tvm.IRModule(functions, module.attrs)


def factors(name: str) -> Sequence[str]:
    """Return the names of the factors of an extent, from its name."""
    return name.split(_JOINED)


def _joined(kernel: PrimFunc) -> PrimFunc | None:
    extents = dynamic_extents(kernel)
    if len(extents) != 2 or not _is_over_product(kernel, extents):
        return None
    first, second = extents
    product = Var(f"{first.name}{_JOINED}{second.name}", str(first.ty))
    generic = PrimFunc([first, second, *tensors(kernel)], kernel.body, kernel.ret_type, kernel.attrs)
    joined = generic.specialize({first: product, second: const(1, str(second.ty))})
    sizes = [size for each in tensors(joined) for size in each.ty.shape]
    if not any(isinstance(size, Var) and size.same_as(product) for size in sizes):
        return None  # no axis has the product as its extent
    own = iter(joined.params)
    params = [next(own) if hasattr(each.ty, "shape") else each for each in kernel.params]
    return PrimFunc(params, joined.body, joined.ret_type, joined.attrs)


def _is_over_product(kernel: PrimFunc, extents: Sequence[Var]) -> bool:
    """Return true if the extents occur only as factors of their product."""

    def without_product(node: Any) -> Any:
        is_product = any(node.a.same_as(one) and node.b.same_as(other) for one, other in (extents, extents[::-1]))
        return const(1, str(node.ty)) if is_product else node

    buffers = tensors(kernel)
    structural_walk(kernel.body, (SBlock, lambda block: buffers.extend(block.alloc_buffers)))
    sizes = [size for each in buffers for size in each.ty.shape if not isinstance(size, int)]
    left = [
        variable
        for part in (kernel.body, *sizes)
        for variable in undefined_vars(structural_map(part, (Mul, without_product)))
    ]
    return not any(variable.same_as(each) for variable in left for each in extents)
