"""Rewrites of the graph that TVM's passes lack, or do slowly: constant folding, affine folding, moving transposes.

All work on the Relax operators of ``main`` before they are lowered to TensorIR. Notation: a *constant* is an expression
whose value is known now (weights); ``value`` is an operand that is not constant.

- Constants are folded with numpy. TVM's FoldConstant compiles a function for every call, 15 s on MobileNetV2.
- ``convolution * constant`` and ``convolution + constant`` (what is left of a batch norm) go into the convolution's
  weights and bias, if the constants vary over its output channels only and nothing else reads the intermediate values.
- Transposes cancel each other or become reshapes; reshapes and broadcasts that change nothing vanish.
- A float32 value that is rounded to half precision only to become float32 again is not rounded.
- Kernels that a frontend emitted in place of an operator become the operator again.
- Axes are counted from the front: TVM's rules for layouts read negative ones of ``squeeze`` as sizes.
- Layer norms over several axes become norms over one.
- ``take`` clips its indices: TVM's default reads outside of the table and crashes for an index out of range. Negative
  ones that are known count from the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax, topi
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of

Array = npt.NDArray[Any]

_AFFINE = frozenset({"relax.add", "relax.subtract", "relax.multiply", "relax.divide"})
_CONVOLUTIONS = frozenset(f"relax.nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose"))


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _axes(attrs: Any, rank: int) -> tuple[int, ...]:
    """The permutation of a ``permute_dims``; None means reversed."""
    if attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(axis % rank for axis in _ints(attrs.axes))


def _shape(expression: Any) -> tuple[int, ...] | None:
    """The static shape of a tensor expression, None where it has none."""
    kind = expression.ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None or not hasattr(kind.shape, "values"):
        return None
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in kind.shape.values):
        return None
    return _ints(kind.shape.values)


def _elementwise(function: Callable[..., Array]) -> Callable[[Any, list[Array]], Array]:
    return lambda _attrs, arrays: function(*arrays)


def _true_divide(left: Array, right: Array) -> Array:
    if not np.issubdtype(left.dtype, np.floating):
        raise NotImplementedError("integer division rounds differently in TVM")
    return np.asarray(left / right)


def _take(attrs: Any, arrays: list[Array]) -> Array:
    axis = None if attrs.axis is None else int(attrs.axis)
    if str(attrs.mode) == "clip":
        return np.take(arrays[0], arrays[1], axis=axis, mode="clip")
    return np.take(arrays[0], arrays[1], axis=axis, mode="wrap")  # indices may count from the end


#: How each operator is evaluated on constants: ``(attributes, operands) -> result``.
_EVALUATE: Mapping[str, Callable[[Any, list[Array]], Array]] = {
    "relax.add": _elementwise(np.add),
    "relax.subtract": _elementwise(np.subtract),
    "relax.multiply": _elementwise(np.multiply),
    "relax.divide": _elementwise(_true_divide),
    "relax.maximum": _elementwise(np.maximum),
    "relax.minimum": _elementwise(np.minimum),
    "relax.negative": _elementwise(np.negative),
    "relax.floor_mod": _elementwise(np.mod),
    "relax.sqrt": _elementwise(np.sqrt),
    "relax.rsqrt": _elementwise(lambda x: np.asarray(1 / np.sqrt(x), x.dtype)),
    "relax.exp": _elementwise(np.exp),
    "relax.isnan": _elementwise(np.isnan),
    "relax.where": _elementwise(np.where),
    "relax.permute_dims": lambda attrs, arrays: np.transpose(arrays[0], _axes(attrs, arrays[0].ndim)),
    "relax.astype": lambda attrs, arrays: arrays[0].astype(str(attrs.dtype)),
    "relax.take": _take,
}

#: Kernels that frontends emit for what are operators of Relax: name, how they are made, the operator.
_KERNELS = {
    "maximum": (topi.maximum, relax.op.maximum),
    "minimum": (topi.minimum, relax.op.minimum),
}

#: Operators whose result is their operand in another shape; the shape is read from the call's type.
_RESHAPES = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"})


def _evaluate(call: Call, operands: list[Array]) -> Array | None:
    """Value of ``call`` on constant operands, None where it is not one that we evaluate."""
    shape, name = _shape(call), call.op.name
    if shape is None:
        return None
    try:
        if name in _RESHAPES:
            result = operands[0].reshape(shape)
        elif name == "relax.broadcast_to":
            result = np.broadcast_to(operands[0], shape)
        elif name == "relax.arange":
            start, end, step = (int(argument.value) for argument in call.args)
            result = np.arange(start, end, step, dtype=str(call.ty.dtype))
        elif name in _EVALUATE:
            result = _EVALUATE[name](call.attrs, operands)
        else:
            return None
    except (NotImplementedError, ValueError, TypeError, AttributeError):
        return None  # left to TVM's own constant folding
    # A different type means that numpy and TVM disagree on the operator (type promotion): keep TVM's.
    return np.asarray(result, order="C") if str(result.dtype) == str(call.ty.dtype) and result.shape == shape else None


def _constant(array: Array) -> Any:
    return relax.const(np.asarray(array, order="C"), str(array.dtype))


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    """One pass over a function in the order of its bindings, so that rewrites see their operands rewritten."""

    def __init__(self, module: Any, uses: Counter[Any]) -> None:
        super().__init__(module)
        self._module = module
        self._uses = uses

    def visit_call_(self, call: Call) -> Any:
        single_use = bool(call.args) and self._used_once(call.args)
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
        if name == "relax.squeeze":
            return self._squeeze(call)
        if name == "relax.take" and str(call.attrs.mode) == "fast":
            return self._take(call)
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
        arrays = [array_of(operand.value) for operand in self._tensors(operands)]
        result = _evaluate(call, arrays)
        return None if result is None else _constant(result)

    # --- affine folding ---

    def _fold_affine(self, call: Call, operands: list[Any]) -> Any | None:
        """``(conv(x, w) + b) * c -> conv(x, w * c) + b * c``, and the same for -, + and /."""
        name = call.op.name
        left, right = operands
        if isinstance(right, GenericConst) and not isinstance(left, GenericConst):
            value, constant = left, right.value.numpy()
        elif isinstance(left, GenericConst) and name in ("relax.add", "relax.multiply"):
            value, constant = right, left.value.numpy()
        else:
            return None
        if _shape(value) is None or _shape(value) != _shape(call) or constant.dtype.kind != "f":
            return None
        convolution, bias = self._convolution_and_bias(value)
        if convolution is None:
            return None
        channel_axis = str(convolution.attrs.out_layout).find("C")
        channels = self._per_channel(constant, _shape(value) or (), channel_axis)
        if channels is None:
            return None
        rank = len(_shape(value) or ())
        if name in ("relax.add", "relax.subtract"):
            if bias is None and name == "relax.add":  # the form that we fold into
                return None
            added = channels if name == "relax.add" else -channels
            total = added if bias is None else bias + added
            return relax.op.add(self.builder_.emit(convolution), self._spread(total, rank, channel_axis))
        factor = channels if name == "relax.multiply" else np.asarray(1 / channels, channels.dtype)
        weight = self._known(convolution.args[1]).value.numpy()
        output_axis = str(convolution.attrs.kernel_layout).find("O")
        scaled = (weight * self._spread_array(factor, weight.ndim, output_axis)).astype(weight.dtype)
        if not np.isfinite(scaled.astype(np.float32)).all():  # too large for the weights' type
            return None
        result = Call(convolution.op, [convolution.args[0], _constant(scaled)], convolution.attrs, convolution.ty_args)
        if bias is None:
            return result
        return relax.op.add(self.builder_.emit(result), self._spread(bias * factor, rank, channel_axis))

    def _convolution_and_bias(self, value: Any) -> tuple[Any, Array | None]:
        """The convolution with constant weights that ``value`` is, and the per-channel constant added to it."""
        if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.Op):
            return None, None
        if value.op.name in _CONVOLUTIONS:
            constant_weight = isinstance(self._known(value.args[1]), GenericConst)
            if value.op.name.endswith("_transpose") and int(value.attrs.groups) > 1:
                return None, None  # its weights have the output channels of one group
            return (value, None) if constant_weight else (None, None)
        if value.op.name != "relax.add" or not self._used_once(value.args):
            return None, None
        left, right = (self._known(argument) for argument in value.args)
        convolution, bias = (left, right) if isinstance(right, GenericConst) else (right, left)
        if not isinstance(bias, GenericConst) or self._convolution_and_bias(convolution)[0] is not convolution:
            return None, None
        channel_axis = str(convolution.attrs.out_layout).find("C")
        channels = self._per_channel(bias.value.numpy(), _shape(convolution) or (), channel_axis)
        return (convolution, channels) if channels is not None else (None, None)

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
        shape = _shape(argument)
        if shape is None:
            return call
        axes = _axes(call.attrs, len(shape))
        producer = self._known(argument)
        if self._is(producer, "relax.permute_dims"):
            inner = _axes(producer.attrs, len(shape))
            argument, axes = producer.args[0], tuple(inner[axis] for axis in axes)
            shape = _shape(argument) or shape
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
        shape = _shape(call)
        axes = [] if shape is None else sorted(axis % len(shape) for axis in _ints(call.attrs.axes))
        if shape is None or len(axes) < 2 or axes != list(range(axes[0], len(shape))):
            return call
        flat = [self.builder_.emit(relax.op.reshape(call.args[0], (*shape[: axes[0]], -1)))]
        for argument in call.args[1:]:
            known = self._known(argument)
            constant = isinstance(known, GenericConst)
            flat.append(
                _constant(known.value.numpy().reshape(-1))
                if constant
                else self.builder_.emit(relax.op.reshape(argument, (-1,)))
            )
        attrs = call.attrs
        norm = relax.op.nn.layer_norm(*flat, axes=[-1], epsilon=attrs.epsilon, center=attrs.center, scale=attrs.scale)
        return relax.op.reshape(self.builder_.emit(norm), shape)

    def _take(self, call: Call) -> Any:
        """Indices that are known may count from the end."""
        axis, index = call.attrs.axis, self._known(call.args[1])
        shape = _shape(call.args[0])
        if isinstance(index, GenericConst) and shape is not None:
            places = index.value.numpy()
            extent = int(np.prod(shape)) if axis is None else shape[int(axis)]
            index = _constant(np.where(places < 0, places + extent, places).astype(places.dtype))
        else:
            index = call.args[1]
        return relax.op.take(call.args[0], index, axis=axis, mode="clip")

    @staticmethod
    def _squeeze(call: Call) -> Any:
        shape = _shape(call.args[0])
        if shape is None or call.attrs.axis is None or min(_ints(call.attrs.axis), default=0) >= 0:
            return call
        return relax.op.squeeze(call.args[0], [axis % len(shape) for axis in _ints(call.attrs.axis)])

    def _reshape(self, call: Call) -> Any:
        shape, before = _shape(call), _shape(call.args[0])
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


def rewrite(module: Any) -> Any:
    """Applies the rewrites of this module's docstring to ``main`` and clears away what they leave unused."""
    main = module.get_global_var("main")
    function = module[main]
    rewriter = _Rewriter(module, _count_uses(function))
    rewriter.builder_.update_func(main, rewriter.visit_expr(function))
    clean = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    )
    return clean(rewriter.builder_.get())
