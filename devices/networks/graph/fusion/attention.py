"""Attention as one function, which becomes one kernel.

    softmax(f(q @ transpose(k))) @ v

and the copies around it: the slices, views and transposes that make ``q``, ``k`` and ``v`` from the results of
products, and the copies of the attention's result. ``f`` consists of element-wise operators: a scale, a mask. The
kernel reads its inputs where they are, and its scores stay in the cache (:mod:`devices.sketches.rules.attention`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.tirx import IntImm
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal

from devices.builds.tensors import array_of
from devices.networks.graph.fusion.attention_guards import SOFTMAX, with_exact_guards
from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.ir.tensors import shape_of
from devices.sketches.dynamic.few_row_attention import few_rows_fit
from devices.sketches.rules.attention.rule import fits

_PRODUCT = "relax.matmul"
_VIEWS = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze"})
_MOVES = _VIEWS | {f"relax.{name}" for name in ("permute_dims", "strided_slice", "concat")}
# Operators that may follow a move: rotary embeddings, scales, heads that share keys.
_POINTWISE = frozenset(f"relax.{name}" for name in ("multiply", "add", "negative", "broadcast_to", "repeat"))
_ELEMENT_WISE = frozenset(
    f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "where", "tanh", "clip")
)


def group_attention(module: Any) -> Any:
    """Return ``module`` with each attention of ``main`` in a function of its own."""
    guarded = with_exact_guards(module, lambda _: True)
    grouped = _Attentions(guarded["main"]).grouped_softmaxes()
    module = with_exact_guards(module, lambda number: number in grouped)  # in attention alone
    groups = _Attentions(module["main"]).groups()
    return _grouped(module, groups) if groups else module


@dataclass(frozen=True)
class _Group:
    """Operators that become one function."""

    bindings: Sequence[Any]
    """The bindings in program order. The last one is the result."""

    @property
    def result(self) -> Any:
        return self.bindings[-1].var

    def inputs(self) -> list[Any]:
        """Return its inputs: variables of other operators, and constants that a kernel cannot have as immediate
        numbers."""
        own = {binding.var for binding in self.bindings}
        found: dict[Any, None] = {}
        for binding in self.bindings:
            for argument in _arguments(_written(binding.value)):
                is_constant = isinstance(argument, GenericConst) and not _is_immediate(argument)
                if is_constant or (isinstance(argument, relax.Var) and argument not in own):
                    found[argument] = None
        return list(found)

    def extents(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the variables in its dynamic extents that are not themselves the extent of an input, such as ``n`` if
        a cache has ``n + 1`` columns."""
        given = [extent for each in inputs for extent in _extents(each) or ()]
        used = [extent for each in self.bindings for extent in _extents(each.var) or ()]
        variables = {one for each in (*given, *used) if not isinstance(each, IntImm) for one in undefined_vars(each)}
        return sorted((each for each in variables if not any(each.same_as(one) for one in given)), key=str)

    def function(self, inputs: Sequence[Any]) -> Any:
        """Return the group as a function of its inputs and, if there are any, of its other extents."""
        new: dict[Any, Any] = {each: relax.Var(f"x{at}", each.ty) for at, each in enumerate(inputs)}
        extents = self.extents(inputs)
        parameters = [*new.values(), *([relax.Var("extents", relax.ShapeType(extents))] if extents else [])]
        steps = []
        for binding in self.bindings:
            value = _written(binding.value)
            if isinstance(value, relax.Var):
                new[binding.var] = new[value]
                continue
            kind = relax.Var if binding.var == self.result else relax.DataflowVar
            new[binding.var] = kind(binding.var.name, binding.var.ty)
            arguments = [_renamed(argument, new) for argument in value.args]
            steps.append(relax.VarBinding(new[binding.var], Call(value.op, arguments, value.attrs, value.ty_args)))
        result = new[self.result]
        body = relax.SeqExpr([relax.DataflowBlock(steps)], result)
        return relax.Function(parameters, body, result.ty).with_attr("Primitive", True)


class _Attentions:
    """The attentions of a function."""

    def __init__(self, main: Any) -> None:
        self._bindings = [binding for block in main.body.blocks for binding in block.bindings]
        self._bound = {binding.var: binding for binding in self._bindings}
        self._readers: dict[Any, list[Any]] = defaultdict(list)
        self._moved: set[Any] = set()
        """Variables whose elements are computed from elements of other variables at other places, without sums."""
        self._taken: set[Any] = set()
        """Variables of the attentions found so far. Operators between two attentions belong to the first."""
        for binding in self._bindings:
            read = relax.analysis.free_vars(binding.value)
            for variable in read:
                self._readers[variable].append(binding.var)
            name = operator_name(binding.value)
            if name in _MOVES or (name in _POINTWISE and any(each in self._moved for each in read)):
                self._moved.add(binding.var)
        for variable in relax.analysis.free_vars(main.body.body):
            self._readers[variable].append(None)

    def groups(self) -> list[_Group]:
        """Return the attentions, each found by its softmax."""
        found = (members for _, members in self._found())
        return [_Group([each for each in self._bindings if each.var in members]) for members in found]

    def grouped_softmaxes(self) -> set[int]:
        """Return the softmaxes of attentions, by their numbers in program order."""
        return {number for number, _ in self._found()}

    def _found(self) -> list[tuple[int, set[Any]]]:
        """Return the number of the softmax and the variables of each attention. Called once."""
        found = []
        softmaxes = [each for each in self._bindings if operator_name(each.value) == SOFTMAX]
        for number, softmax in enumerate(softmaxes):
            members = self._around(softmax)
            if members:
                self._taken |= members
                found.append((number, members))
        return found

    def _around(self, softmax: Any) -> set[Any]:
        """Return the variables of the attention of a softmax. Empty if the softmax belongs to no attention."""
        rank = len(_extents(softmax.var) or ())
        if int(softmax.value.attrs.axis) not in (-1, rank - 1):
            return set()
        guard = self._guard(softmax)
        members = {softmax.var, *guard}
        weighted = self._product_of_weights(guard[-1] if guard else softmax.var, members)
        product = self._product_of_scores(softmax.value.args[0], members)
        if weighted is None or product is None:
            return set()
        operands = (*product.value.args, weighted.value.args[1])
        if not _is_attention(product.var, weighted.var, operands):
            return set()
        self._add_copies_of(weighted.var, members)
        self._add_what_makes(operands, members)
        return members

    def _guard(self, softmax: Any) -> list[Any]:
        """Return the variables of the guard that gives weights of zero to rows of nothing but -inf, as torch computes
        it. The last one is the guarded weights. Empty if there is no guard.

            where(not any(scores != -inf), 0, softmax(scores))
        """
        wheres = [each for each in self._readers[softmax.var] if each is not None and self._calls(each, "where")]
        if len(wheres) != 1:
            return []
        (where,) = wheres
        condition, zeros, weights = self._bound[where].value.args
        found = [condition]
        for name in ("logical_not", "astype", "max", "astype", "logical_not"):
            if not self._calls(found[-1], name):
                return []
            found.append(self._bound[found[-1]].value.args[0])
        if not self._calls(found[-1], "equal") or weights != softmax.var:
            return []
        scores, lowest = self._bound[found[-1]].value.args
        if scores != softmax.value.args[0] or not _is_number(lowest, -math.inf):
            return []
        if self._calls(zeros, "full_like"):
            found.append(zeros)
            zeros = self._bound[zeros].value.args[1]
        members = {softmax.var, where, *found}
        inside = all(self._is_inside(each, members) for each in members - {where})
        return [*found, where] if inside and _is_number(zeros, 0.0) else []

    def _product_of_weights(self, variable: Any, members: set[Any]) -> Any | None:
        """Return the product that reads the weights. Add it and the views before it to ``members``."""
        while (reader := self._only_reader(variable, members)) is not None:
            members.add(reader.var)
            if operator_name(reader.value) == _PRODUCT:
                return reader if reader.value.args[0] == variable else None
            if operator_name(reader.value) not in _VIEWS:
                break
            variable = reader.var
        return None

    def _product_of_scores(self, variable: Any, members: set[Any]) -> Any | None:
        """Return the product that the scores are computed from. Add it and the operators after it to ``members``."""
        while variable in self._bound and variable not in self._taken and self._is_inside(variable, members):
            members.add(variable)
            binding = self._bound[variable]
            if operator_name(binding.value) == _PRODUCT:
                return binding
            if operator_name(binding.value) not in _ELEMENT_WISE | _VIEWS:
                break
            size = _size(variable)
            scores = [each for each in binding.value.args if self._comes_from_product(each, size)]
            if len(scores) != 1:
                break
            (variable,) = scores
        return None

    def _comes_from_product(self, variable: Any, size: tuple[int, tuple[str, ...]]) -> bool:
        """Return true if ``variable`` has ``size`` elements that are computed element by element from a product."""
        while variable in self._bound and _size(variable) == size:
            call = self._bound[variable].value
            if operator_name(call) == _PRODUCT:
                return True
            if operator_name(call) not in _ELEMENT_WISE | _VIEWS:
                return False
            variable = next((each for each in call.args if isinstance(each, relax.Var)), None)
        return False

    def _add_copies_of(self, variable: Any, members: set[Any]) -> None:
        """Add the copies of a value, as long as nothing else reads the value or a copy."""
        while (reader := self._only_reader(variable, members)) is not None:
            if operator_name(reader.value) not in _VIEWS | {"relax.permute_dims"}:
                break
            variable = reader.var
            members.add(variable)

    def _add_what_makes(self, operands: Sequence[Any], members: set[Any]) -> None:
        """Add the operators that make the products' operands by moving elements, if nothing else reads their results. A
        bias is left to the product before it."""
        wanted = {each for each in operands if isinstance(each, relax.Var)}
        for binding in reversed(self._bindings):
            if binding.var not in wanted or binding.var in self._taken:
                continue
            if binding.var in self._moved and self._is_inside(binding.var, members):
                members.add(binding.var)
                wanted |= set(relax.analysis.free_vars(binding.value))

    def _is_inside(self, variable: Any, members: set[Any]) -> bool:
        return all(reader in members for reader in self._readers[variable])

    def _only_reader(self, variable: Any, members: set[Any]) -> Any | None:
        """Return the only reader of a variable outside of ``members``. None if there are several, or if it belongs to
        another attention or is the function's result."""
        readers = [each for each in self._readers[variable] if each is None or each not in members]
        if len(readers) != 1 or readers[0] is None or readers[0] in self._taken:
            return None
        return self._bound[readers[0]]

    def _calls(self, variable: Any, name: str) -> bool:
        return variable in self._bound and operator_name(self._bound[variable].value) == f"relax.{name}"


def _is_number(expression: Any, number: float) -> bool:
    """Return true for a constant of one element that is ``number``."""
    if not isinstance(expression, GenericConst):
        return False
    array = array_of(expression.value)
    return array.size == 1 and float(array.reshape(())) == number


def _written(call: Call) -> Any:
    """Return a call in the form that it has in the function.

    Networks that were exported without a mask add a mask of zeros: the sum becomes the scores alone. The guard's
    ``scores == -inf`` becomes ``scores < lowest``: the lowest finite number can be an immediate.
    """
    name = operator_name(call)
    if name == "relax.equal":
        return relax.op.less(call.args[0], relax.const(np.finfo(np.float32).min, "float32"))
    if name == "relax.add":
        for scores, mask in (call.args, reversed(call.args)):
            is_whole = isinstance(scores, relax.Var) and _are_equal(_extents(scores), _extents(call))
            if is_whole and isinstance(mask, GenericConst) and not array_of(mask.value).any():
                return scores
    return call


def _arguments(value: Any) -> list[Any]:
    """Return the arguments of a call, with tuples flattened. For a variable, return the variable."""
    given = value.args if isinstance(value, Call) else [value]
    return [each for one in given for each in (one.fields if isinstance(one, relax.Tuple) else [one])]


def _renamed(argument: Any, new: Mapping[Any, Any]) -> Any:
    if isinstance(argument, relax.Tuple):
        return relax.Tuple([new.get(each, each) for each in argument.fields])
    return new.get(argument, argument)


def _is_immediate(constant: GenericConst) -> bool:
    """Return true for a finite scalar, which TVM writes into a kernel as an immediate."""
    return not shape_of(constant) and bool(np.isfinite(array_of(constant.value).astype(np.float64)))


def _is_attention(scores: Any, result: Any, operands: Sequence[Any]) -> bool:
    """Return true for products of float32 whose extents fit the kernel."""
    if any(not isinstance(each, relax.Var) or str(each.ty.dtype) != "float32" for each in operands):
        return False
    shapes = [_extents(each) for each in (scores, result, *operands)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or any(not _are_equal(shape[:-2], known[0][:-2]) for shape in known):
        return False
    *batch, rows, columns = map(_number, known[0])
    width, terms = (_number(shape[-1]) for shape in known[1:3])
    if width is None:
        return False
    has_few_rows = None not in batch and columns is None and few_rows_fit(rows, terms, width)
    return has_few_rows or fits(rows, columns, width)


def _extents(expression: Any) -> tuple[Any, ...] | None:
    """Return the extents of a tensor, dynamic ones too. None if they are not known."""
    kind = expression.ty
    if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return None
    return tuple(kind.shape.values)


def _are_equal(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(structural_equal(*pair, map_free_vars=False) for pair in zip(one, other, strict=True))


def _size(expression: Any) -> tuple[int, tuple[str, ...]]:
    """Return the number of elements of a tensor: the product of the fixed extents, and the dynamic extents."""
    extents = _extents(expression) or ()
    dynamic = sorted(str(each) for each in extents if not isinstance(each, IntImm))
    return prod(int(each) for each in extents if isinstance(each, IntImm)), tuple(dynamic)


def _number(extent: Any) -> int | None:
    return int(extent) if isinstance(extent, IntImm) else None


def _grouped(module: Any, groups: Sequence[_Group]) -> Any:
    """Return ``module`` with each group as a function that ``main`` calls."""
    builder = relax.BlockBuilder(module)
    main = module["main"]
    calls: Mapping[Any, Any] = {group.result: group for group in groups}
    inside = {binding.var for group in groups for binding in group.bindings}
    blocks = []
    for block in main.body.blocks:
        bindings = []
        for binding in block.bindings:
            group = calls.get(binding.var)
            if group is not None:
                inputs = group.inputs()
                extents = group.extents(inputs)
                arguments = [*inputs, *([relax.ShapeExpr(extents)] if extents else [])]
                function = builder.add_func(group.function(inputs), "attention")
                bindings.append(relax.VarBinding(binding.var, builder.normalize(Call(function, arguments))))
            elif binding.var not in inside:
                bindings.append(binding)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    result = builder.get()
    result.update_func(
        module.get_global_var("main"), relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    )
    return result
