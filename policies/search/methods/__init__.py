"""``--method``: one module for each source, and :func:`method_named` for their names.

A method is parts put together, with the numbers of its source (:class:`Method`). Where a paper leaves a number open,
the docstring of its method says what stands there instead.
"""

from policies.search.methods.method import Method
from policies.search.methods.registry import METHOD_NAMES, OFFLINE, method_named, spec, with_model

__all__ = ["METHOD_NAMES", "OFFLINE", "Method", "method_named", "spec", "with_model"]
