"""The graph around a call, for rules that rewrite the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst


@dataclass(frozen=True)
class RewriteContext:
    """The graph around one call: bindings, readers, and the builder that new values are emitted with."""

    builder: Any
    lookup_binding: Callable[[Any], Any]
    #: How often each variable of the function was read before the rewriting.
    uses: Counter[Any]
    #: The inputs of softmaxes whose results only products (or reshapes) read.
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
        """Return the value that a variable is bound to, through aliases. Any other expression is returned unchanged."""
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
"""Returns the expression that replaces a call, or the call itself if nothing changes."""
