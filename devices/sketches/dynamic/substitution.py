"""Substitution of a kernel's tensors by those of another kernel that it becomes a part of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.ir import Range, TensorLoad, TensorRegion
from tvm.tirx import BufferRegion, BufferStore, Stmt
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map

Moved = Callable[[Any, Sequence[Any]], list[Any]]
"""A function that takes a tensor and indices in it, and returns the indices in the tensor that replaces it."""


def on_tensors(body: Stmt, theirs: Mapping[Any, Any], moved: Moved = lambda _, indices: list(indices)) -> Stmt:
    """Return a statement in which tensors are replaced by others.

    Args:
        body: the statement.
        theirs: the replacement of each tensor; other tensors stay.
        moved: returns the indices in the replacement.

    Raises ValueError if the statement passes a replaced tensor on as a pointer, not by indices.
    """

    def load(node: Any) -> Any:
        return theirs[node.source][tuple(moved(node.source, node.indices))] if node.source in theirs else node

    def store(node: Any) -> Any:
        if node.buffer not in theirs:
            return node
        return BufferStore(theirs[node.buffer], node.value, moved(node.buffer, node.indices))

    def region(node: Any) -> Any:
        if node.source not in theirs:
            return node
        first = moved(node.source, [each.min for each in node.region])
        ranges = [Range.from_min_extent(low, each.extent) for low, each in zip(first, node.region, strict=True)]
        return BufferRegion(theirs[node.source], ranges)

    result = structural_map(body, [(TensorLoad, load), (BufferStore, store), (TensorRegion, region)])
    left = [each for each in undefined_vars(result) if each in theirs]
    if left:
        raise ValueError(f"it hands on {left[0].name} as a pointer")
    return result
