"""Transposes move after operators that do not depend on the order of axes. There they meet other transposes and cancel
out.

    f(transpose(x), transpose(y), constant)    ->    transpose(f(x, y, constant'))

Convolutions that have channels last leave a transpose wherever a value is read in the original layout. A residual sum
of values that all come from such transposes, as in ConvNeXt, needs none. Transposes pass concatenations, slices and
reshapes too, so that ShuffleNet's shuffles of channels need none. If a reshape merges axes that the transpose has moved
together, a smaller transpose is needed before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import constant, is_call, operator_name
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.ir.tensors import axes_of, ints, shape_of
from devices.networks.graph.layouts.channels_last import moved_bytes
from devices.networks.graph.rewrites.rewriter import rewrite

_ELEMENT_WISE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "negative", "astype"),
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "sigmoid", "tanh", "erf", "sqrt", "exp"),
    )
)


def fold_transposes(module: Any) -> Any:
    """Return ``module`` rewritten, with its transposes moved, if that leaves fewer bytes to move."""
    plain = rewrite(module)
    if not moved_bytes(plain["main"]):
        return plain
    moved = [
        rewrite(relax.transform.Normalize()(with_main_visited(plain, _TransposeMover(plain, through_merges))))
        for through_merges in (False, True)
    ]
    return min((plain, *moved), key=lambda each: moved_bytes(each["main"]))


@dataclass(frozen=True)
class _Transpose:
    """A transposed value: axis ``i`` is axis ``axes[i]`` of ``source``."""

    source: Any
    axes: tuple[int, ...]

    def of(self, value: Any) -> Any:
        """Return ``value`` transposed in the same way."""
        return relax.op.permute_dims(value, list(self.axes))


@mutator
class _TransposeMover(PyExprMutator):  # type: ignore[misc]
    """Rewrites operators on transposed values as transposes of the operators' results.

    ``through_merges``: true to also move a transpose through a reshape that merges axes which it has moved together.
    That needs another transpose before the reshape. An attention merges its heads like this, and nothing is gained
    there.
    """

    def __init__(self, module: Any, through_merges: bool) -> None:
        super().__init__(module)
        self._through_merges = through_merges

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = operator_name(call)
        if name in _ELEMENT_WISE:
            return self._element_wise(call)
        if name == "relax.concat":
            return self._concatenation(call)
        found = self._transpose(call.args[0]) if call.args else None
        if found is None:
            return call
        match name:
            case "relax.permute_dims":
                order = axes_of(call.attrs, len(found.axes))
                return relax.op.permute_dims(found.source, [found.axes[axis] for axis in order])
            case "relax.strided_slice" if shape_of(call) is not None:
                axes, *bounds = (ints(argument.fields) for argument in call.args[1:])
                there = [found.axes[axis] for axis in axes]
                inbound = bool(call.attrs.assume_inbound)
                part = relax.op.strided_slice(found.source, there, *map(list, bounds), assume_inbound=inbound)
                return found.of(self.builder_.emit(part))
            case "relax.reshape":
                return self._reshape(call, found)
        return call

    def _element_wise(self, call: Call) -> Any:
        variables = [each for each in call.args if isinstance(each, relax.Var)]
        if any(shape_of(each) != shape_of(call) for each in variables):
            return call
        found = self._common(variables)
        if found is None:
            return call
        arguments = [self._argument(each, found.axes) for each in call.args]
        return found.of(self.builder_.emit(Call(call.op, arguments, call.attrs, call.ty_args)))

    def _concatenation(self, call: Call) -> Any:
        parts = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else call.args[0]
        if not isinstance(parts, relax.Tuple) or call.attrs.axis is None:
            return call
        fields = list(parts.fields)
        found = self._common([each for each in fields if not isinstance(each, GenericConst)])
        if found is None:
            return call
        axis = found.axes[int(call.attrs.axis) % len(found.axes)]
        return found.of(
            self.builder_.emit(relax.op.concat([self._argument(each, found.axes) for each in fields], axis))
        )

    def _reshape(self, call: Call, found: _Transpose) -> Any:
        """Split and merge axes of the source. Axes that are merged are made neighbours first."""
        before, after = shape_of(call.args[0]), shape_of(call)
        if not before or not after:
            return call
        groups = _groups(before, after)
        # An axis of one element may be anywhere: the first longer axis of a group gives the group's place in the
        # source.
        firsts = [next((axis for axis in group if before[axis] > 1), group[0]) for group, _ in groups]
        places = sorted(range(len(groups)), key=lambda at: found.axes[firsts[at]])
        if places == sorted(places):  # the transpose would stay where it is
            return call
        gathered = [found.axes[axis] for at in places for axis in groups[at][0]]
        split = [axis for at in places for axis in groups[at][1]]
        value = found.source
        if gathered != sorted(gathered):
            if not self._through_merges:
                return call
            value = self.builder_.emit(relax.op.permute_dims(value, gathered))
        value = self.builder_.emit(relax.op.reshape(value, [after[axis] for axis in split]))
        return relax.op.permute_dims(value, [split.index(axis) for axis in range(len(split))])

    def _common(self, values: Sequence[Any]) -> _Transpose | None:
        """Return the transpose that all ``values`` have in common. None if they differ, or one is not transposed."""
        found = [self._transpose(each) for each in values]
        first = found[0] if found else None
        return first if first and all(each is not None and each.axes == first.axes for each in found) else None

    def _transpose(self, value: Any) -> _Transpose | None:
        """Return the source and the axes of a transposed variable. None if it is not a transpose."""
        bound = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        if bound is None or not is_call(bound, "relax.permute_dims") or not isinstance(bound.args[0], relax.Var):
            return None
        shape = shape_of(bound.args[0])
        return None if shape is None else _Transpose(bound.args[0], axes_of(bound.attrs, len(shape)))

    def _argument(self, argument: Any, axes: tuple[int, ...]) -> Any:
        """Return the source of a transposed ``argument``. A constant is transposed back."""
        if isinstance(argument, relax.Var):
            found = self._transpose(argument)
            assert found is not None
            return found.source
        if isinstance(argument, GenericConst) and shape_of(argument):
            array = array_of(argument.value)
            order = [axes.index(at) for at in range(len(axes))]
            return constant(array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(order))
        return argument


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the axes of two shapes in the smallest groups that hold the same elements: ``[2, 6, 5]`` and
    ``[2, 2, 3, 5]`` have the groups ``[0] [0]``, ``[1] [1, 2]`` and ``[2] [3]``.

    Every axis is in one group; both shapes are in order, and have at least one axis.
    """
    groups: list[tuple[list[int], list[int]]] = []
    one = other = 0
    while one < len(before) and other < len(after):
        left, right = [one], [other]
        while (size := prod(before[axis] for axis in left)) != (size2 := prod(after[axis] for axis in right)):
            (left if size < size2 else right).append((one + len(left)) if size < size2 else (other + len(right)))
        groups.append((left, right))
        one, other = one + len(left), other + len(right)
    groups[-1][0].extend(range(one, len(before)))  # axes of one element are left
    groups[-1][1].extend(range(other, len(after)))
    return groups
