"""Bytes between kernels: the conversion of bytes to larger numbers moves from the end of a kernel to its readers.

Fusion joins an element-wise operator with the kernel before it if possible. So a value that is dequantised for a
pooling, a norm, a softmax or the other branch of a residual sum would be written and read as four bytes for each
number. It stays in bytes if all its readers can convert it as they read. Only readers that read each number a few times
can.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.low_precision.op_patterns import BROADCAST, EPILOGUE_FUSABLE
from devices.sketches.description.accesses import leaf_blocks

_BYTES = ("uint8", "int8")
_MOST_READS = 4
"""How often a reader that converts may read each number. Softmax and norms read it two or three times, poolings as
often as their windows overlap, products once for each of their rows or columns."""


def keep_bytes(module: Any) -> Any:
    """Return ``module``, whose operators are grouped into functions (``relax.transform.FuseOps``), with bytes between
    them."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    readers: dict[Any, list[Any]] = defaultdict(list)
    for binding in bindings:
        for variable in relax.analysis.free_vars(binding.value):
            readers[variable].append(binding.value)
    kept = {
        binding.var: group
        for binding in bindings
        if (group := _Group.of(module, binding.value)) is not None
        and isinstance(binding.var, relax.DataflowVar)
        and group.ends_with_conversion
        and all(_can_convert(module, reader, binding.var) for reader in readers[binding.var])
    }
    return _Rewriting(module, kept).result() if kept else module


@dataclass(frozen=True)
class _Conversion:
    """A call of a kernel that converts bytes to larger numbers."""

    call: Call
    numbers: Sequence[Any]
    """Constants of ``main`` that the kernel takes besides the bytes: a scale, and a zero point."""


class _Group:
    """A function that fusion made: calls of kernels, one after another.

    Args:
        module: the module of the function.
        parameters: its parameters.
        steps: its bindings.
        result: variable of its result.
    """

    def __init__(self, module: Any, parameters: Sequence[Any], steps: Sequence[Any], result: Any) -> None:
        self.module = module
        self.parameters = list(parameters)
        self.steps = list(steps)
        self.result = result

    @staticmethod
    def of(module: Any, call: Any) -> _Group | None:
        """Return the group that a call of ``main`` runs. A call of a single kernel is a group of one. None for anything
        else."""
        if operator_name(call) == "relax.call_tir" and _is_plain(call):
            parameters = [relax.Var(f"x{at}", each.ty) for at, each in enumerate(call.args[1].fields)]
            result = relax.Var("result", call.ty)
            step = relax.VarBinding(result, _kernel_call(call, parameters))
            return _Group(module, parameters, [step], result)
        function = module[call.op] if isinstance(call, Call) and isinstance(call.op, tvm.ir.GlobalVar) else None
        if not isinstance(function, relax.Function) or len(function.body.blocks) != 1:
            return None
        steps = function.body.blocks[0].bindings
        plain = all(operator_name(each.value) == "relax.call_tir" and _is_plain(each.value) for each in steps)
        fits = plain and isinstance(function.body.body, relax.Var)
        return _Group(module, function.params, steps, function.body.body) if fits else None

    @property
    def ends_with_conversion(self) -> bool:
        """True if the last step converts bytes, which a step before it computes, to larger numbers."""
        if len(self.steps) < 2 or self.steps[-1].var != self.result:
            return False
        call = self.steps[-1].value
        given, *numbers = call.args[1].fields
        return (
            any(step.var == given for step in self.steps[:-1])
            and all(each in self.parameters for each in numbers)
            and str(given.ty.dtype) in _BYTES
            and str(call.ty.dtype) not in _BYTES
            and _pattern(self._kernel(call)) <= BROADCAST
        )

    def converts(self, parameter: Any) -> bool:
        """Return true if each step that reads a parameter may convert it."""
        reading = [(step.value, at) for step in self.steps for at in _places(step.value, parameter)]
        return bool(reading) and all(_reads_few_times(self._kernel(call), at) for call, at in reading)

    def without_conversion(self, arguments: Sequence[Any]) -> tuple[_Group, _Conversion]:
        """Return the group that ends with the bytes, and the conversion that it ended with, when called with these
        arguments."""
        *steps, last = self.steps
        before, *numbers = last.value.args[1].fields
        result = relax.Var(before.name, before.ty)
        group = _Group(self.module, self.parameters, _renamed(steps, {before: result}), result)
        given = dict(zip(self.parameters, arguments, strict=True))
        return group, _Conversion(last.value, [given[each] for each in numbers])

    def with_conversion(self, at: int, conversion: _Conversion) -> _Group:
        """Return the group that takes bytes as its parameter ``at``, and converts them before it reads them. Its last
        parameters are the numbers of the conversion."""
        old = self.parameters[at]
        given, *numbers = conversion.call.args[1].fields
        taken = relax.Var(old.name, given.ty)
        added = [relax.Var(f"{old.name}_number_{place}", each.ty) for place, each in enumerate(numbers)]
        converted = relax.DataflowVar(f"{old.name}_converted", old.ty)
        parameters = [*self.parameters[:at], taken, *self.parameters[at + 1 :], *added]
        reading = next(place for place, step in enumerate(self.steps) if _places(step.value, old))
        steps = _renamed(self.steps, {old: converted})
        steps.insert(reading, relax.VarBinding(converted, _kernel_call(conversion.call, [taken, *added])))
        return _Group(self.module, parameters, steps, self.result)

    def without_unread(self, arguments: Sequence[Any]) -> tuple[_Group, list[Any]]:
        """Return the group without the parameters that no step reads, and its other arguments."""
        read = [any(_places(step.value, parameter) for step in self.steps) for parameter in self.parameters]
        group = _Group(self.module, list(compress(self.parameters, read)), self.steps, self.result)
        return group, list(compress(arguments, read))

    def function(self) -> Any:
        """Return the group as a function of Relax."""
        body = relax.SeqExpr([relax.DataflowBlock(self.steps)], self.result)
        function = relax.Function(self.parameters, body, self.result.ty)
        return function.with_attr("Primitive", True)

    def _kernel(self, call: Call) -> Any:
        return self.module[call.args[0]]


class _Rewriting:
    """Rewrites ``main`` with bytes for the values in ``kept``, which maps each to the group that computes it."""

    def __init__(self, module: Any, kept: Mapping[Any, _Group]) -> None:
        self._module = module
        self._kept = kept
        self._new: dict[Any, Any] = {}
        """The variable of bytes that replaces each old value."""
        self._conversions: dict[Any, _Conversion] = {}
        self._builder = relax.BlockBuilder(module)

    def result(self) -> Any:
        """Return the new module."""
        main = self._module["main"]
        blocks = [type(each)([self._binding(binding) for binding in each.bindings]) for each in main.body.blocks]
        body = relax.SeqExpr(blocks, main.body.body)
        changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        result = self._builder.get()
        result.update_func(self._module.get_global_var("main"), changed)
        return relax.transform.DeadCodeElimination(["main"])(result)

    def _binding(self, binding: Any) -> Any:
        call, group = binding.value, self._kept.get(binding.var)
        arguments = list(call.args) if isinstance(call, Call) else []
        if operator_name(call) == "relax.call_tir":
            arguments = list(call.args[1].fields)
        as_bytes = [each for each in arguments if each in self._new]
        if group is None and not as_bytes:
            return binding
        group = group or _Group.of(self._module, call)
        assert group is not None
        for at, argument in enumerate(list(arguments)):
            if argument in self._new:
                conversion = self._conversions[argument]
                group = group.with_conversion(at, conversion)
                arguments += conversion.numbers
        variable = binding.var
        if variable in self._kept:
            group, self._conversions[variable] = group.without_conversion(arguments)
            self._new[variable] = relax.DataflowVar(variable.name, group.result.ty)
            variable = self._new[variable]
        group, arguments = group.without_unread(arguments)
        name = "_".join(["fused", *(step.value.args[0].name_hint for step in group.steps)])
        function = self._builder.add_func(group.function(), name)
        called = Call(function, [self._new.get(each, each) for each in arguments])
        return relax.VarBinding(variable, self._builder.normalize(called))


def _can_convert(module: Any, reader: Any, variable: Any) -> bool:
    """Return true if the call ``reader`` in ``main`` can take ``variable`` as bytes."""
    group = _Group.of(module, reader)
    if group is None or (len(group.steps) == 1 and relax.analysis.has_reshape_pattern(_only_kernel(module, group))):
        return False
    arguments = reader.args[1].fields if operator_name(reader) == "relax.call_tir" else reader.args
    return all(
        group.converts(parameter)
        for parameter, argument in zip(group.parameters, arguments, strict=True)
        if argument == variable
    )


def _only_kernel(module: Any, group: _Group) -> Any:
    return module[group.steps[0].value.args[0]]


def _reads_few_times(kernel: Any, at: int) -> bool:
    """Return true for a kernel that other operators can be fused with, and that reads each number of its parameter
    ``at`` a few times at most."""
    if _pattern(kernel) > EPILOGUE_FUSABLE or not hasattr(kernel.body, "block"):
        return False
    buffer = kernel.params[at]
    size = _count(buffer.shape)
    reads = 0
    for block in leaf_blocks(kernel).values():
        reading = sum(region.source.same_as(buffer) for region in block.reads)
        points = _count(axis.dom.extent for axis in block.iter_vars) if reading else 0
        if points is None:
            return False
        reads += points * reading
    return size is not None and reads <= _MOST_READS * size


def _count(extents: Iterable[Any]) -> int | None:
    """Return the product of extents. None if one is an expression, as it is for windows of uneven sizes."""
    known = list(extents)
    return math.prod(map(int, known)) if all(isinstance(each, tvm.tirx.IntImm) for each in known) else None


def _pattern(kernel: Any) -> int:
    pattern = kernel.attrs.get("op_pattern") if kernel.attrs else None
    return EPILOGUE_FUSABLE + 1 if pattern is None else int(pattern)


def _is_plain(call: Call) -> bool:
    """Return true for a call of a kernel that only takes tensors and returns one tensor."""
    return len(call.args) == 2 and isinstance(call.args[1], relax.Tuple) and isinstance(call.ty, relax.TensorType)


def _places(call: Call, variable: Any) -> list[int]:
    return [at for at, each in enumerate(call.args[1].fields) if each == variable]


def _kernel_call(call: Call, inputs: Sequence[Any]) -> Call:
    return Call(call.op, [call.args[0], relax.Tuple(list(inputs))], call.attrs, call.ty_args)


def _renamed(steps: Sequence[Any], names: Mapping[Any, Any]) -> list[Any]:
    return [
        relax.VarBinding(
            names.get(step.var, step.var),
            _kernel_call(step.value, [names.get(each, each) for each in step.value.args[1].fields]),
        )
        for step in steps
    ]
