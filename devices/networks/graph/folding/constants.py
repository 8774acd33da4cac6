"""Folding of values that depend on constants alone (masks, position tables, indices) into constants.

Most single operators are folded with numpy during the rewrites (:mod:`devices.networks.graph.rewrites.rewriter`).
Everything else that depends on constants alone is compiled as one function for this machine and run once: TVM's
FoldConstant, which compiles a function for every call, takes seconds for a hundred calls.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, PrimType
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx.analysis import undefined_vars

from devices.builds.executables import Array, has_fixed_shape, run_on_host, tensor_specs
from devices.networks.graph.folding.numpy_operators import MAX_BYTES
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.legalization.operators import LEGALIZED

# A pure call: it reads and writes only its operands, and gives the same result each time.
_KERNEL = "relax.call_tir"
_NEVER = frozenset({"relax.call_pure_packed", "relax.call_dps_packed", "relax.call_tir_inplace"})


def fold_constants(module: Any) -> Any:
    """Return ``module`` with the values that ``main`` computes from constants alone as constants."""
    main = module["main"]
    known: dict[Any, Any] = {}  # value of each variable that depends on constants alone, in order
    read: dict[Any, None] = {}  # variables that other values read
    for block in main.body.blocks:
        for binding in block.bindings:
            if _is_known(binding.value, known):
                known[binding.var] = binding.value
            if binding.var not in known or isinstance(binding.value, relax.Tuple):
                read.update(dict.fromkeys(_variables(binding.value)))
    read.update(dict.fromkeys(_variables(main.body.body)))
    wanted = [var for var, value in known.items() if var in read and not isinstance(value, GenericConst)]
    wanted = [var for var in wanted if isinstance(var.ty, relax.TensorType) and _bytes(var) <= MAX_BYTES]
    if not wanted:
        return module
    values = dict(zip(wanted, _computed(module, known, wanted), strict=True))
    replaced = with_main_visited(module, _BindingReplacer(module, values))
    clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(clean)(replaced)


def fold_lowered_constants(module: Any) -> Any:
    """Return ``module`` with those kernels that ``main`` calls on constants alone replaced by their results. Calls
    inside of groups of operators stay: in a group, which becomes one kernel, TVM's fusion accepts no constant
    tensor."""
    groups = {
        variable: function
        for variable, function in module.functions.items()
        if isinstance(function, relax.Function) and variable.name_hint != "main"
    }
    rest = {variable: function for variable, function in module.functions.items() if variable not in groups}
    folded = relax.transform.FoldConstant()(tvm.IRModule(rest, module.attrs))
    return tvm.IRModule({**dict(folded.functions.items()), **groups}, folded.attrs)


def _is_known(value: Any, known: dict[Any, Any]) -> bool:
    """Return true if ``value`` depends on constants alone."""
    if isinstance(value, Call):
        return _is_foldable(value) and all(_is_known(argument, known) for argument in value.args)
    if isinstance(value, relax.Tuple):
        return all(_is_known(field, known) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return _is_known(value.tuple_value, known)
    if isinstance(value, relax.Var):
        return value in known
    if isinstance(value, relax.If | relax.SeqExpr | relax.Function):
        return False
    extents = value.values if isinstance(value, relax.ShapeExpr) else [value]
    return not any(isinstance(each.ty, PrimType) and undefined_vars(each) for each in extents)


def _is_foldable(call: Call) -> bool:
    if not isinstance(call.op, tvm.ir.Op) or call.op.name in _NEVER or not has_fixed_shape(call.ty):
        return False
    return call.op.name == _KERNEL or call.op.get_attr("FLegalize") is not None


def _variables(value: Any) -> list[Any]:
    """Return the variables that an expression reads."""
    found: list[Any] = []
    relax.analysis.post_order_visit(value, lambda node: found.append(node) if isinstance(node, relax.Var) else None)
    return found


def _bytes(variable: Any) -> int:
    (spec,) = tensor_specs([variable.ty])
    count = 1
    for extent in spec.shape:
        count *= extent
    return count * int(tvm.DataType(spec.dtype).itemsize)


def _computed(module: Any, known: dict[Any, Any], wanted: list[Any]) -> tuple[Array, ...]:
    """Compute the values of ``wanted``, with the lowerings of the network's own kernels."""
    result = relax.Var("result", relax.TupleType([variable.ty for variable in wanted]))
    bindings = [relax.VarBinding(variable, value) for variable, value in known.items()]
    block = relax.DataflowBlock([*bindings, relax.VarBinding(result, relax.Tuple(wanted))])
    function = relax.Function([], relax.SeqExpr([block], result), result.ty).with_attr("global_symbol", "main")
    kernels = {var: kernel for var, kernel in module.functions.items() if isinstance(kernel, tvm.tirx.PrimFunc)}
    alone = tvm.IRModule({**kernels, tvm.ir.GlobalVar("main"): function})
    passes = [relax.transform.DeadCodeElimination(["main"]), relax.transform.LegalizeOps(LEGALIZED)]
    return run_on_host(tvm.transform.Sequential(passes)(alone))


@mutator
class _BindingReplacer(PyExprMutator):  # type: ignore[misc]
    """Replaces bindings by constants."""

    def __init__(self, module: Any, values: dict[Any, Array]) -> None:
        super().__init__(module)
        self._values = values

    def visit_var_binding_(self, binding: Any) -> None:
        value = self._values.get(binding.var)
        if value is not None:
            binding = relax.VarBinding(binding.var, relax.const(value, str(binding.var.ty.dtype)))
        super().visit_var_binding_(binding)
