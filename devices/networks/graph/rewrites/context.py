"""The graph around a call, as a rule sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from devices.networks.graph.numpy_operators import Array, shape_of


@dataclass(frozen=True)
class RewriteContext:
    """The graph around one call: bindings, readers, and the builder that new values are emitted with."""

    builder: Any
    lookup_binding: Callable[[Any], Any]
    #: How often each variable of the function is read, by the variables that it had before.
    uses: Counter[Any]
    #: The inputs of the softmaxes whose results only products read.
    attention_scores: set[Any]
    #: The call before its operands were rewritten.
    original: Call

    def emit(self, value: Any) -> Any:
        """Bind ``value`` to a new variable."""
        return self.builder.emit(value)

    def normalize(self, value: Any) -> Any:
        """Return ``value`` with its type."""
        return self.builder.normalize(value)

    def known(self, expression: Any) -> Any:
        """Return what a variable is bound to, through aliases, and any other expression as it is."""
        while isinstance(expression, relax.Var):
            bound = self.lookup_binding(expression)
            if bound is None:
                break
            if not isinstance(bound, relax.Var | GenericConst):
                return bound
            expression = bound
        return expression

    def used_once(self, arguments: Iterable[Any]) -> bool:
        """Return true if no variable among ``arguments`` is read more than once."""
        return all(self.uses[argument] <= 1 for argument in arguments if isinstance(argument, relax.Var))


Rule = Callable[[RewriteContext, Call], Any]
"""Returns the expression that takes the place of a call; the call itself where nothing changes."""


def is_call(expression: Any, name: str) -> bool:
    """Return true if ``expression`` is a call of the operator ``name``."""
    return operator_name(expression) == name


def operator_name(expression: Any) -> str:
    """Return the name of the operator that ``expression`` calls; empty for anything else."""
    return str(expression.op.name) if isinstance(expression, Call) and isinstance(expression.op, tvm.ir.Op) else ""


def shown_product(call: Call) -> str:
    """Return a product in words: its operator, and the extents of its result without a batch of one."""
    operator = operator_name(call).removeprefix("relax.").removeprefix("nn.")
    extents = [str(each) for each in shape_of(call) or ()]
    return f"{operator} {'x'.join(extents[1:] if extents[:1] == ['1'] and len(extents) > 1 else extents)}"


def constant(array: Array) -> Any:
    """Return ``array`` as a constant of Relax."""
    return relax.const(np.asarray(array, order="C"), str(array.dtype))
