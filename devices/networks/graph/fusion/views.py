"""A reshape of another kernel's result becomes a view of it, even if the reshape is an output of the network.

TVM's pass makes views only inside of the network. For an output, a kernel would copy the whole result.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call


def make_output_views(module: Any) -> Any:
    """Return ``module``, lowered, with views for the kernels of ``main`` that only reshape and whose results are
    outputs.

    Results with other readers stay, so that outputs share memory neither with each other nor with an input.
    """
    main = module.get_global_var("main")
    function = module[main]
    made: dict[Any, Any] = {}
    uses: Counter[Any] = Counter()
    for block in function.body.blocks:
        for binding in block.bindings:
            made[binding.var] = binding.value
            relax.analysis.post_order_visit(
                binding.value, lambda each: uses.update([each] if _is_variable(each) else [])
            )
    relax.analysis.post_order_visit(function.body.body, lambda each: uses.update([each] if _is_variable(each) else []))
    builder = relax.BlockBuilder()
    blocks = []
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            source = None if isinstance(binding.var, relax.DataflowVar) else _reshaped(module, binding.value)
            if source is not None and uses[source] == 1 and _is_kernel(made.get(source)):
                view = builder.normalize(relax.op.reshape(source, binding.var.ty.shape))
                binding = relax.VarBinding(binding.var, view)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    changed = relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
    result = tvm.IRModule(dict(module.functions.items()), module.attrs)
    result.update_func(main, changed)
    return relax.transform.DeadCodeElimination(["main"])(result)


def _is_variable(expression: Any) -> bool:
    return isinstance(expression, relax.Var)


def _is_kernel(expression: Any) -> bool:
    return (
        isinstance(expression, Call)
        and isinstance(expression.op, tvm.ir.Op)
        and expression.op.name == "relax.call_tir"
        and isinstance(expression.ty, relax.TensorType)
    )


def _reshaped(module: Any, expression: Any) -> Any | None:
    """Return the variable that a call of a kernel only reshapes; None for every other expression."""
    if not _is_kernel(expression) or len(expression.args[1].fields) != 1:
        return None
    (source,) = expression.args[1].fields
    return source if relax.analysis.has_reshape_pattern(module[expression.args[0]]) else None
