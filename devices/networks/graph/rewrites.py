"""Rewrites of the graph that TVM's passes lack, or do slowly: constant folding, affine folding, moving transposes.

All work on the Relax operators of ``main`` before they are lowered to TensorIR. Notation: a *constant* is an expression
whose value is known now (weights); ``value`` is an operand that is not constant.

- Constants are folded with numpy. TVM's FoldConstant compiles a function for every call, 15 s on MobileNetV2.
- ``convolution * constant`` and ``convolution + constant`` (what is left of a batch norm) go into the convolution's
  weights and bias, if the constants vary over its output channels only and nothing else reads the intermediate values;
  likewise for products with a constant matrix.
- Transposes cancel each other or become reshapes; reshapes and broadcasts that change nothing vanish.
- A float32 value that is rounded to half precision only to become float32 again is not rounded.
- Kernels that a frontend emitted in place of an operator become the operator again.
- Axes are counted from the front: TVM's rules for layouts read negative ones of ``squeeze`` as sizes.
- Layer norms over several axes become norms over one. A softmax that only products read (attention) becomes one of
  rows, between views: one kernel for all of as many rows, whose blocks have few places to go. With others something
  may be fused, and they stay.
- ``take`` of a few ranges is a slice of each; of others it clips its indices: TVM's default reads outside of the table
  and crashes for an index out of range. Negative ones that are known count from the end. Indices are read as they are
  given: flat ones, as frontends make them, need a kernel before the look-up, and one that copies all of it after.
- Parts of a split are slices. Slices come before transposes. Slices of everything and padding by nothing vanish.
- Adaptive pooling over windows that all have one size is pooling over those, and over single elements nothing.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, topi
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.numpy_operators import Array, axes_of, evaluate, ints, shape_of

_AFFINE = frozenset({"relax.add", "relax.subtract", "relax.multiply", "relax.divide"})
_CONVOLUTIONS = frozenset(f"relax.nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose"))
_ADAPTIVE = {f"relax.nn.adaptive_avg_pool{n}d": getattr(relax.op.nn, f"avg_pool{n}d") for n in (1, 2, 3)}


#: Kernels that frontends emit for what are operators of Relax: name, how they are made, the operator.
_KERNELS = {
    "maximum": (topi.maximum, relax.op.maximum),
    "minimum": (topi.minimum, relax.op.minimum),
}

# What nothing is fused with in front of it, so that a view there costs nothing.
_APART = frozenset({"relax.matmul", "relax.reshape"})

# Ranges of indices that are read as slices; of more than these a look-up is as good.
_MOST_RANGES = 4


def _constant(array: Array) -> Any:
    return relax.const(np.asarray(array, order="C"), str(array.dtype))


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    """One pass over a function in the order of its bindings, so that rewrites see their operands rewritten."""

    def __init__(self, module: Any, uses: Counter[Any], softmaxes: set[Any]) -> None:
        super().__init__(module)
        self._module = module
        self._uses = uses
        self._softmaxes = softmaxes
        self._folded: dict[tuple[Any, ...], Any] = {}

    def visit_call_(self, call: Call) -> Any:
        single_use = bool(call.args) and self._used_once(call.args)
        read_by_products = bool(call.args) and call.args[0] in self._softmaxes
        call = self._as_operator(self.visit_expr_post_order(call))
        if not isinstance(call, Call) or not isinstance(call.op, tvm.ir.Op):
            return call
        name = call.op.name
        operands = [self._known(argument) for argument in call.args]
        if name == "relax.arange" or (operands and all(isinstance(o, GenericConst) for o in self._tensors(operands))):
            folded = self._fold(call, operands)
            if folded is not None:
                return folded
        if name in _AFFINE and single_use:
            folded = self._fold_affine(call, operands)
            if folded is not None:
                return folded
        if name == "relax.permute_dims":
            return self._permute(call)
        if name in ("relax.reshape", "relax.broadcast_to"):
            return self._reshape(call)
        if name == "relax.astype":
            return self._convert(call)
        if name == "relax.nn.layer_norm":
            return self._norm_of_one_axis(call)
        if name == "relax.nn.softmax" and read_by_products:
            return self._softmax_of_rows(call)
        if name == "relax.squeeze":
            return self._squeeze(call)
        if name == "relax.take":
            return self._take(call)
        if name == "relax.strided_slice":
            return self._slice(call)
        if name in _ADAPTIVE:
            return self._windows_of_one_size(call)
        if name == "relax.nn.pad" and not any(ints(call.attrs.pad_width)):
            return call.args[0]
        return call

    def _as_operator(self, call: Any) -> Any:
        """The operator that a kernel is, where the ONNX frontend already made a kernel of it (``Clip``): as an operator
        it takes part in the choice of layouts."""
        if not self._is(call, "relax.call_tir"):
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

    def _used_once(self, arguments: Any) -> bool:
        return all(self._uses[argument] <= 1 for argument in arguments if isinstance(argument, relax.Var))

    def _known(self, expression: Any) -> Any:
        """What a variable is bound to, through aliases; the expression itself where it is no bound variable."""
        while isinstance(expression, relax.Var):
            bound = self.lookup_binding(expression)
            if bound is None:
                break
            if not isinstance(bound, relax.Var | GenericConst):
                return bound
            expression = bound
        return expression

    @staticmethod
    def _tensors(expressions: list[Any]) -> list[Any]:
        return [e for e in expressions if isinstance(e.ty, relax.TensorType)]

    def _fold(self, call: Call, operands: list[Any]) -> Any | None:
        """Equal ones are folded once: an unrolled loop transposes one weight in every step."""
        key = (call.op.name, tvm_ffi.structural_hash(call.attrs), *map(self._identity, operands))
        if key not in self._folded:
            arrays = [array_of(operand.value) for operand in self._tensors(operands)]
            result = evaluate(call, arrays)
            self._folded[key] = None if result is None else _constant(result)
        return self._folded[key]

    @staticmethod
    def _identity(operand: Any) -> Any:
        """Of a tensor itself, not its content, which may be large; it is kept, so that no other takes its place."""
        return operand if isinstance(operand.ty, relax.TensorType) else tvm_ffi.structural_hash(operand)

    # --- affine folding ---

    def _fold_affine(self, call: Call, operands: list[Any]) -> Any | None:
        """``(conv(x, w) + b) * c -> conv(x, w * c) + b * c``, and the same for -, + and /."""
        name = call.op.name
        left, right = operands
        if isinstance(right, GenericConst) and not isinstance(left, GenericConst):
            value, constant = left, array_of(right.value)
        elif isinstance(left, GenericConst) and name in ("relax.add", "relax.multiply"):
            value, constant = right, array_of(left.value)
        else:
            return None
        if shape_of(value) is None or shape_of(value) != shape_of(call) or constant.dtype.kind != "f":
            return None
        convolution, bias = self._convolution_and_bias(value)
        if convolution is None:
            return None
        channel_axis, output_axis = self._channel_axes(convolution)
        channels = self._per_channel(constant, shape_of(value) or (), channel_axis)
        if channels is None:
            return None
        rank = len(shape_of(value) or ())
        if name in ("relax.add", "relax.subtract"):
            if bias is None and name == "relax.add":  # the form that we fold into
                return None
            added = channels if name == "relax.add" else -channels
            total = added if bias is None else bias + added
            return relax.op.add(self.builder_.emit(convolution), self._spread(total, rank, channel_axis))
        factor = channels if name == "relax.multiply" else np.asarray(1 / channels, channels.dtype)
        weight = array_of(self._known(convolution.args[1]).value)
        scaled = (weight * self._spread_array(factor, weight.ndim, output_axis)).astype(weight.dtype)
        if not np.isfinite(scaled.astype(np.float32)).all():  # too large for the weights' type
            return None
        result = Call(convolution.op, [convolution.args[0], _constant(scaled)], convolution.attrs, convolution.ty_args)
        if bias is None:
            return result
        return relax.op.add(self.builder_.emit(result), self._spread(bias * factor, rank, channel_axis))

    def _convolution_and_bias(self, value: Any) -> tuple[Any, Array | None]:
        """The convolution or product with constant weights that ``value`` is, and the per-channel constant added to
        it."""
        if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.Op):
            return None, None
        if value.op.name in _CONVOLUTIONS:
            constant_weight = isinstance(self._known(value.args[1]), GenericConst)
            if value.op.name.endswith("_transpose") and int(value.attrs.groups) > 1:
                return None, None  # its weights have the output channels of one group
            return (value, None) if constant_weight else (None, None)
        if value.op.name == "relax.matmul":
            weight = self._known(value.args[1])
            plain = isinstance(weight, GenericConst) and len(shape_of(weight) or ()) == 2
            return (value, None) if plain else (None, None)
        if value.op.name != "relax.add" or not self._used_once(value.args):
            return None, None
        left, right = (self._known(argument) for argument in value.args)
        convolution, bias = (left, right) if isinstance(right, GenericConst) else (right, left)
        if not isinstance(bias, GenericConst) or self._convolution_and_bias(convolution)[0] is not convolution:
            return None, None
        channel_axis, _ = self._channel_axes(convolution)
        channels = self._per_channel(array_of(bias.value), shape_of(convolution) or (), channel_axis)
        return (convolution, channels) if channels is not None else (None, None)

    @staticmethod
    def _channel_axes(linear: Call) -> tuple[int, int]:
        """The axes of the output channels, in the result and in the weights."""
        if linear.op.name == "relax.matmul":
            return len(shape_of(linear) or ()) - 1, 1
        return str(linear.attrs.out_layout).find("C"), str(linear.attrs.kernel_layout).find("O")

    @staticmethod
    def _per_channel(constant: Array, shape: tuple[int, ...], axis: int) -> Array | None:
        """``constant`` as a vector over the channels, None where it varies over another axis."""
        if constant.ndim > len(shape) or axis < 0:
            return None
        padded = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
        if any(extent != 1 for at, extent in enumerate(padded.shape) if at != axis):
            return None
        return np.array(np.broadcast_to(padded.reshape(-1), (shape[axis],)))

    @staticmethod
    def _spread_array(vector: Array, rank: int, axis: int) -> Array:
        return vector.reshape(tuple(-1 if at == axis else 1 for at in range(rank)))

    def _spread(self, vector: Array, rank: int, axis: int) -> Any:
        return _constant(self._spread_array(vector, rank, axis))

    # --- transposes and reshapes ---

    def _permute(self, call: Call) -> Any:
        argument = call.args[0]
        shape = shape_of(argument)
        if shape is None:
            return call
        axes = axes_of(call.attrs, len(shape))
        producer = self._known(argument)
        if self._is(producer, "relax.permute_dims"):
            inner = axes_of(producer.attrs, len(shape))
            argument, axes = producer.args[0], tuple(inner[axis] for axis in axes)
            shape = shape_of(argument) or shape
        if axes == tuple(range(len(axes))):
            return argument
        moved = [axis for axis in axes if shape[axis] != 1]
        if moved == sorted(moved):  # only axes of one element change place
            return relax.op.reshape(argument, tuple(shape[axis] for axis in axes))
        return relax.op.permute_dims(argument, list(axes))

    def _convert(self, call: Call) -> Any:
        """Sums of half-precision products are float32: rounded only to be widened again, they stay as they are."""
        producer = self._known(call.args[0])
        if not self._is(producer, "relax.astype"):
            return call
        original, between = str(producer.args[0].ty.dtype), str(producer.ty.dtype)
        widened_again = original == str(call.ty.dtype) == "float32" and between in ("float16", "bfloat16")
        return producer.args[0] if widened_again else call

    def _norm_of_one_axis(self, call: Call) -> Any:
        """A layer norm over several axes, which are the last, as one over one axis: TVM's rule for layouts turns the
        data of the former, but not their weights."""
        shape = shape_of(call)
        axes = [] if shape is None else sorted(axis % len(shape) for axis in ints(call.attrs.axes))
        if shape is None or len(axes) < 2 or axes != list(range(axes[0], len(shape))):
            return call
        flat = [self.builder_.emit(relax.op.reshape(call.args[0], (*shape[: axes[0]], -1)))]
        for argument in call.args[1:]:
            known = self._known(argument)
            constant = isinstance(known, GenericConst)
            flat.append(
                _constant(array_of(known.value).reshape(-1))
                if constant
                else self.builder_.emit(relax.op.reshape(argument, (-1,)))
            )
        attrs = call.attrs
        norm = relax.op.nn.layer_norm(*flat, axes=[-1], epsilon=attrs.epsilon, center=attrs.center, scale=attrs.scale)
        return relax.op.reshape(self.builder_.emit(norm), shape)

    def _softmax_of_rows(self, call: Call) -> Any:
        shape = shape_of(call)
        if shape is None or len(shape) < 3 or int(call.attrs.axis) % len(shape) != len(shape) - 1:
            return call
        rows = self.builder_.emit(relax.op.reshape(call.args[0], (prod(shape[:-1]), shape[-1])))
        return relax.op.reshape(self.builder_.emit(relax.op.nn.softmax(rows, axis=-1)), shape)

    @staticmethod
    def _windows_of_one_size(call: Call) -> Any:
        """Windows whose sizes differ keep the adaptive operator: TVM can tune nothing of it."""
        before, after = shape_of(call.args[0]), shape_of(call)
        if before is None or after is None:
            return call
        layout = str(call.attrs.layout)
        axes = [layout.index(axis) for axis in "DHW" if axis in layout]
        if before == after:
            return call.args[0]
        if any(before[axis] % after[axis] for axis in axes):
            return call
        window = [before[axis] // after[axis] for axis in axes]
        return _ADAPTIVE[call.op.name](call.args[0], window, strides=window, layout=layout)

    @staticmethod
    def _squeeze(call: Call) -> Any:
        shape = shape_of(call.args[0])
        if shape is None or call.attrs.axis is None or min(ints(call.attrs.axis), default=0) >= 0:
            return call
        return relax.op.squeeze(call.args[0], [axis % len(shape) for axis in ints(call.attrs.axis)])

    def _take(self, call: Call) -> Any:
        """Constant indices that are a few ranges (the parts of a tuple, a rolled axis) are slices, which take part in
        fusion; a look-up does not."""
        table, axis, shape = call.args[0], call.attrs.axis, shape_of(call.args[0])
        indices = self._known(call.args[1])
        if shape is not None and axis is not None and isinstance(indices, GenericConst) and min(shape) > 0:
            at = int(axis) % len(shape)
            chosen = np.clip(self._places(call, indices, shape[at]), 0, shape[at] - 1)  # as TVM does
            if chosen.ndim == 0:
                part = self.builder_.emit(self._section(table, at, int(chosen), int(chosen) + 1))
                return relax.op.reshape(part, shape[:at] + shape[at + 1 :])
            starts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1) if chosen.ndim == 1 else ()
            if 0 < len(starts) <= _MOST_RANGES:
                ranges = [(int(each[0]), int(each[-1]) + 1) for each in np.split(chosen, starts[1:])]
                if ranges == [(0, shape[at])]:
                    return table
                parts = [self.builder_.emit(relax.op.strided_slice(table, [at], [low], [end])) for low, end in ranges]
                return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=at)
        mode = "clip" if str(call.attrs.mode) == "fast" else str(call.attrs.mode)
        index = call.args[1]
        if isinstance(indices, GenericConst):
            if mode == str(call.attrs.mode) or shape is None:
                return call
            extent = int(np.prod(shape)) if axis is None else shape[int(axis) % len(shape)]
            index = _constant(self._places(call, indices, extent).astype(str(index.ty.dtype)))
            return relax.op.take(table, index, axis=axis, mode=mode)
        given = self._as_given(index)
        if shape_of(given) == shape_of(index):
            return relax.op.take(table, given, axis=axis, mode=mode)
        taken = self.builder_.emit(relax.op.take(table, given, axis=axis, mode=mode))
        return relax.op.reshape(taken, shape_of(call))

    def _as_given(self, index: Any) -> Any:
        """What ``index`` is made of by reshapes and by narrowing to 32 bits, which changes no place in a table."""
        while True:
            producer = self._known(index)
            narrowed = self._is(producer, "relax.astype") and (
                (str(producer.args[0].ty.dtype), str(producer.ty.dtype)) == ("int64", "int32")
            )
            if not narrowed and not (self._is(producer, "relax.reshape") and shape_of(producer.args[0]) is not None):
                return index
            index = producer.args[0]

    @staticmethod
    def _places(call: Call, indices: Any, extent: int) -> Array:
        """Known indices, from the front; in TVM's default mode they may count from the end, in another they wrap."""
        places: Array = indices.value.numpy().astype(np.int64)
        mode = str(call.attrs.mode)
        if mode == "wrap":
            return places % extent
        return np.where(places < 0, places + extent, places) if mode == "fast" else places

    def visit_tuple_getitem_(self, item: Any) -> Any:
        """A part of a split is a slice: every reader then takes its own along, where a split writes all parts down."""
        item = self.visit_expr_post_order(item)
        split = self._known(item.tuple_value) if isinstance(item, relax.TupleGetItem) else item
        if not self._is(split, "relax.split"):
            return item
        shape, part = shape_of(split.args[0]), shape_of(item)
        if shape is None or part is None:
            return item
        axis = int(split.attrs.axis) % len(shape)
        before = sum(int(field.shape.values[axis]) for field in list(split.ty.fields)[: int(item.index)])
        return self._section(split.args[0], axis, before, before + part[axis])

    def _section(self, value: Any, axis: int, begin: int, end: int) -> Any:
        """``value[begin:end]`` along ``axis``."""
        return self._slice(self.builder_.normalize(relax.op.strided_slice(value, [axis], [begin], [end])))

    def _slice(self, call: Call) -> Any:
        """A slice of everything vanishes; of a transposed tensor the slice is transposed, and not the whole."""
        value, (axes, begin, end, *steps) = call.args[0], (ints(argument.fields) for argument in call.args[1:])
        shape = shape_of(value)
        if shape is None:
            return call
        if shape_of(call) == shape and min(steps[0] if steps else (), default=1) > 0:
            return value
        producer = self._known(value)
        if not self._is(producer, "relax.permute_dims"):
            return call
        order = axes_of(producer.attrs, len(shape))
        there = [order[axis] for axis in axes]
        part = relax.op.strided_slice(producer.args[0], there, list(begin), list(end), *map(list, steps))
        return relax.op.permute_dims(self.builder_.emit(part), list(order))

    def _reshape(self, call: Call) -> Any:
        shape, before = shape_of(call), shape_of(call.args[0])
        if shape is None or before is None:
            return call
        if shape == before:
            return call.args[0]
        producer = self._known(call.args[0])
        if self._is(call, "relax.reshape") and self._is(producer, "relax.reshape"):
            return relax.op.reshape(producer.args[0], shape)
        return call

    @staticmethod
    def _is(expression: Any, name: str) -> bool:
        return isinstance(expression, Call) and isinstance(expression.op, tvm.ir.Op) and expression.op.name == name


def _count_uses(function: Any) -> Counter[Any]:
    """How often each variable of ``function`` is read."""
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


def _softmaxes_of_products(function: Any) -> set[Any]:
    """What each softmax reads whose result only products read."""
    readers: dict[Any, set[str]] = {}
    softmaxes: dict[Any, Any] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            name = value.op.name if isinstance(value, Call) and isinstance(value.op, tvm.ir.Op) else ""
            if name == "relax.nn.softmax":
                softmaxes[binding.var] = value.args[0]
            for variable in relax.analysis.free_vars(value):
                readers.setdefault(variable, set()).add(name)
    return {data for result, data in softmaxes.items() if readers.get(result, set()) <= _APART}


def rewrite(module: Any) -> Any:
    """Applies the rewrites of this module's docstring to ``main`` and clears away what they leave unused."""
    main = module.get_global_var("main")
    function = module[main]
    rewriter = _Rewriter(module, _count_uses(function), _softmaxes_of_products(function))
    rewriter.builder_.update_func(main, rewriter.visit_expr(function))
    clean = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    )
    return clean(rewriter.builder_.get())
