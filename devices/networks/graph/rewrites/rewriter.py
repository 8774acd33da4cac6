"""One pass over ``main`` that applies the rule of each operator, before the operators are lowered to TensorIR.

Notation: a *constant* is an expression whose value is known now (weights); a *value* is an operand that is not
constant.

Constants are folded with numpy: TVM's FoldConstant compiles a function for every call, which takes 15 s on MobileNetV2.
Kernels that a frontend emitted instead of an operator become the operator again. A new rule is one entry in a table of
its module.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, topi
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.folding.numpy_operators import evaluate
from devices.networks.graph.ir.calls import constant, is_call, operator_name
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.rewrites.affine import AFFINE_RULES
from devices.networks.graph.rewrites.context import RewriteContext, Rule
from devices.networks.graph.rewrites.lookups import LOOKUP_RULES, split_part
from devices.networks.graph.rewrites.shapes import SHAPE_RULES
from devices.networks.graph.rewrites.windows import WINDOW_RULES

RULES: dict[str, Rule] = {**AFFINE_RULES, **SHAPE_RULES, **WINDOW_RULES, **LOOKUP_RULES}
"""The rule of each operator that has one."""

#: Kernels that frontends emit for operators of Relax: the kernel's name, its definition, the operator.
_KERNELS = {
    "maximum": (topi.maximum, relax.op.maximum),
    "minimum": (topi.minimum, relax.op.minimum),
}

#: Operators into which nothing before them is fused, so that a view before them costs nothing.
_UNFUSED = frozenset({"relax.matmul", "relax.reshape"})


def rewrite(module: Any) -> Any:
    """Return ``module`` with the rules applied to ``main``, and unused bindings removed."""
    function = module["main"]
    rewriter = _OperatorRewriter(module, _count_uses(function), _attention_scores(function))
    rewritten = with_main_visited(module, rewriter)
    clean = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    )
    return clean(rewritten)


@mutator
class _OperatorRewriter(PyExprMutator):  # type: ignore[misc]
    """Visits a function in the order of its bindings, so that rules see their operands rewritten."""

    def __init__(self, module: Any, uses: Counter[Any], attention_scores: set[Any]) -> None:
        super().__init__(module)
        self._module = module
        self._uses = uses
        self._attention_scores = attention_scores
        self._folded: dict[tuple[Any, ...], Any] = {}

    def visit_call_(self, original: Call) -> Any:
        call = self._as_operator(self.visit_expr_post_order(original))
        name = operator_name(call)
        if not name:
            return call
        context = self._context(original)
        folded = self._fold(context, call)
        if folded is not None:
            return folded
        rule = RULES.get(name)
        return call if rule is None else rule(context, call)

    def visit_tuple_getitem_(self, original: Any) -> Any:
        return split_part(self._context(original), self.visit_expr_post_order(original))

    def _context(self, original: Any) -> RewriteContext:
        return RewriteContext(self.builder_, self.lookup_binding, self._uses, self._attention_scores, original)

    def _as_operator(self, call: Any) -> Any:
        """If a call is of a kernel that the ONNX frontend made from an operator (for ``Clip``), return the operator:
        unlike a kernel, it takes part in the choice of layouts."""
        if not is_call(call, "relax.call_tir"):
            return call
        kernel = self._module[call.args[0]]
        for hint, (define, operator) in _KERNELS.items():
            arguments = list(call.args[1].fields)
            if call.args[0].name_hint.startswith(hint) and len(arguments) == 2:
                builder = relax.BlockBuilder()
                parameters = [relax.Var(f"x{at}", argument.ty) for at, argument in enumerate(arguments)]
                with builder.function("main", parameters):
                    builder.emit_func_output(builder.emit_te(define, *parameters, primfunc_name_hint=hint))
                if tvm_ffi.structural_equal(builder.get()[hint], kernel):
                    return self.builder_.normalize(operator(*arguments))
        return call

    def _fold(self, context: RewriteContext, call: Call) -> Any | None:
        """Return the value of a call on constants. None if it has other operands, or numpy does not compute it.

        Equal calls are folded once: an unrolled loop transposes one weight in every step.
        """
        operands = [context.known(argument) for argument in call.args]
        tensors = [each for each in operands if isinstance(each.ty, relax.TensorType)]
        constants = bool(operands) and all(isinstance(each, GenericConst) for each in tensors)
        if not constants and call.op.name != "relax.arange":
            return None
        key = (call.op.name, tvm_ffi.structural_hash(call.attrs), *map(_identity, operands))
        if key not in self._folded:
            result = evaluate(call, [array_of(operand.value) for operand in tensors])
            self._folded[key] = None if result is None else constant(result)
        return self._folded[key]


def _identity(operand: Any) -> Any:
    """Return a key of an operand. A tensor is its own key, as hashing its content may take long. The key keeps the
    tensor alive, so that no other tensor gets its address."""
    return operand if isinstance(operand.ty, relax.TensorType) else tvm_ffi.structural_hash(operand)


def _count_uses(function: Any) -> Counter[Any]:
    """Count how often each variable of ``function`` is read."""
    uses: Counter[Any] = Counter()

    def count(expression: Any) -> None:
        if isinstance(expression, relax.Var):
            uses[expression] += 1
        elif isinstance(expression, Call):
            for argument in expression.args:
                count(argument)
        elif isinstance(expression, relax.Tuple):
            for item in expression.fields:
                count(item)
        elif isinstance(expression, relax.TupleGetItem):
            count(expression.tuple_value)
        elif isinstance(expression, relax.SeqExpr):
            for block in expression.blocks:
                for binding in block.bindings:
                    count(binding.value)
            count(expression.body)
        elif isinstance(expression, relax.If):
            count(expression.cond)
            count(expression.true_branch)
            count(expression.false_branch)

    count(function.body)
    return uses


def _attention_scores(function: Any) -> set[Any]:
    """Return the input of each softmax whose result only products (or reshapes) read."""
    readers: dict[Any, set[str]] = {}
    softmaxes: dict[Any, Any] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            name = operator_name(value)
            if name == "relax.nn.softmax":
                softmaxes[binding.var] = value.args[0]
            for variable in relax.analysis.free_vars(value):
                readers.setdefault(variable, set()).add(name)
    return {data for result, data in softmaxes.items() if readers.get(result, set()) <= _UNFUSED}
