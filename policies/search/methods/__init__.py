"""Search methods: one module for each source, and :func:`method_named` for their names.

A method is made of parts, with the numbers of its source (:class:`Method`). The docstring of a method names the numbers
that its paper leaves open.
"""

from policies.search.methods.method import Method
from policies.search.methods.registry import METHOD_NAMES, OFFLINE, method_named, spec, with_model

__all__ = ["METHOD_NAMES", "OFFLINE", "Method", "method_named", "spec", "with_model"]
