"""Programs of every kind of operator and type, and the check of kernels for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te, topi
from tvm.tirx import PrimFunc

from devices.builds.checks.check_plan import plan_of
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.builds.passes.vector_math import use_vector_math
from devices.builds.tensors import array_of, tensor_of
from devices.client.output_check import all_finite, disagreement
from devices.protocol import CheckedRun, TensorSpec
from devices.sketches.spaces import Scheduled
from devices.targets import parse_target
from devices.timing.arguments import Array, poison
from devices.timing.checked_inputs import make_checked_inputs
from tests.helpers.kernels import native_target
from tests.helpers.programs import make_function

Tensors = Sequence[te.Tensor]


def build(functions: Sequence[PrimFunc]) -> list[Callable[..., None]]:
    """The compiled functions."""
    use_vector_math()
    use_kernel_passes()
    named = {f"kernel_{at}": f.with_attr("global_symbol", f"kernel_{at}") for at, f in enumerate(functions)}
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        library: Any = tvm.tirx.build(tvm.IRModule(named), target=parse_target(native_target()))
    return [library[name] for name in named]


def build_scheduled(scheduled: Scheduled) -> Callable[..., None]:
    """The compiled candidate, which packs weights first."""
    main, *packs = build([scheduled.module["main"], *(scheduled.module[f"pack_{at}"] for at in scheduled.packed)])

    def run(*arguments: Any) -> None:
        given = list(arguments)
        for at, pack in zip(scheduled.packed, packs, strict=True):
            given[at] = tvm.runtime.empty(scheduled.args[at].shape, scheduled.args[at].dtype)
            pack(arguments[at], given[at])
        main(*given)

    return run


class CheckedProgram:
    """A program, its plan, and the outputs of its unscheduled form. The last arguments are its outputs."""

    def __init__(self, tensors: Tensors, outputs: int = 1) -> None:
        self.function = make_function(tensors)
        self.plan = plan_of(self.function)
        self.specs = [TensorSpec(tuple(int(n) for n in t.shape), str(t.dtype)) for t in tensors]
        self.outputs = tuple(range(len(tensors)))[-outputs:]
        (oracle,) = build([self.function])
        self.positive = False
        plain = self._run(oracle, self._inputs(special=False))
        if not all_finite(plain):
            self.positive = True
            plain = self._run(oracle, self._inputs(special=False))
        self._runs = [CheckedRun(False, plain)]
        if self.plan.specials:
            self._runs.append(CheckedRun(True, self._run(oracle, self._inputs(special=True))))

    def disagreement(self, kernel: Callable[..., None]) -> str:
        """Why a kernel is found wrong; empty if it is verified."""
        for run in self._runs:
            outputs = self._run(kernel, self._inputs(run.special), run)
            rounded = self.positive and not run.special
            text = disagreement(run.outputs, outputs, self.plan, rounded=rounded, special=run.special)
            if text:
                return text
        return ""

    def differs(self, kernel: Callable[..., None], sets: int = 100) -> bool:
        """True if the kernel's outputs have other bits than the program's on one of many further sets of inputs. Where
        floats are not limited, all bits that there are and rows of negative numbers are among them."""
        (right,) = build([self.function])
        return any(
            not _same_bits(one, other)
            for number in range(sets)
            for one, other in zip(
                *(self._run(each, self._further_inputs(number)) for each in (right, kernel)), strict=True
            )
        )

    def _further_inputs(self, number: int) -> list[Array]:
        special = bool(self.plan.specials) and number % 2 == 1
        plan = self.plan
        arrays = make_checked_inputs(f"further {number}", self.specs, self.outputs, False, plan, special)
        rng = np.random.default_rng(number)
        for at, (array, drawn) in enumerate(zip(arrays, plan.specials, strict=False)):
            if not drawn.signed or not (drawn.nan or drawn.infinite) or at in self.outputs:
                continue
            if number % 4 == 1 and drawn.nan and np.isinf(drawn.limit):
                arrays[at] = rng.integers(0, 256, array.nbytes, np.uint8).view(array.dtype).reshape(array.shape)
            elif number % 4 == 3:
                arrays[at] = (-np.abs(rng.normal(0, 10.0 ** (number % 5), array.shape))).astype(array.dtype)
        return arrays

    def _inputs(self, special: bool) -> list[Array]:
        return make_checked_inputs("t", self.specs, self.outputs, self.positive and not special, self.plan, special)

    def _run(self, kernel: Callable[..., None], arrays: list[Array], against: CheckedRun | None = None) -> list[Array]:
        for number, at in enumerate(self.outputs):
            expected = None if against is None else against.outputs[number]
            arrays[at] = poison(self.specs[at], expected, infinite=against is not None and against.special)
        arguments = [tensor_of(np.ascontiguousarray(array)) for array in arrays]
        kernel(*arguments)
        return [array_of(arguments[at]) for at in self.outputs]


def _same_bits(one: Array, other: Array) -> bool:
    same = one == other
    if one.dtype.kind not in "iub":
        same = (same & (np.signbit(one) == np.signbit(other))) | ((one != one) & (other != other))
    return bool(same.all())


def tensor(shape: tuple[int, ...], dtype: str = "float32", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def _unary(
    rule: Callable[[te.Tensor], te.Tensor], dtype: str = "float32", shape: tuple[int, ...] = (13, 37)
) -> Tensors:
    x = tensor(shape, dtype)
    return [x, rule(x)]


def _binary(
    rule: Callable[[te.Tensor, te.Tensor], te.Tensor], dtype: str = "float32", shape: tuple[int, ...] = (13, 37)
) -> Tensors:
    x, y = tensor(shape, dtype), tensor(shape, dtype, "y")
    return [x, y, rule(x, y)]


def _pointwise(name: str, dtype: str = "float32") -> Tensors:
    return _unary(lambda x: te.compute(x.shape, lambda *at: getattr(tvm.tirx, name)(x[at]), name=name), dtype)


def _matmul(dtype: str, out: str, relu: bool = False, inner: int = 64) -> Tensors:
    a, b = tensor((24, inner), dtype, "a"), tensor((inner, 20), dtype, "b")
    r = te.reduce_axis((0, inner), "r")
    c = te.compute((24, 20), lambda i, j: te.sum(a[i, r].astype(out) * b[r, j].astype(out), axis=r), name="c")
    return [a, b, topi.nn.relu(c) if relu else c]


def _mixed_matmul() -> Tensors:
    a, b = tensor((24, 64), "uint8", "a"), tensor((64, 20), "int8", "b")
    r = te.reduce_axis((0, 64), "r")
    return [a, b, te.compute((24, 20), lambda i, j: te.sum(a[i, r].astype("int32") * b[r, j].astype("int32"), axis=r))]


def _weights_of_bytes() -> Tensors:
    a, b = tensor((24, 64), name="a"), tensor((20, 64), "int8", "b")
    scale = tensor((20,), name="scale")
    r = te.reduce_axis((0, 64), "r")
    c = te.compute((24, 20), lambda i, j: te.sum(a[i, r] * b[j, r].astype("float32"), axis=r), name="c")
    return [a, b, scale, te.compute((24, 20), lambda i, j: c[i, j] * scale[j], name="scaled")]


def _conv(kernel: int, groups: int = 1, stride: int = 1, dtype: str = "float32") -> Tensors:
    data, weight = tensor((1, 9, 9, 8), dtype, "data"), tensor((kernel, kernel, 8 // groups, 8), dtype, "weight")
    bias = tensor((1, 1, 1, 8), name="bias")
    if dtype == "float32":
        out = topi.nn.conv(data, weight, stride, kernel // 2, 1, groups, "NHWC", "HWIO")
    else:
        out = topi.nn.conv2d_nhwc(data, weight, stride, kernel // 2, 1, out_dtype="float32")
    return [data, weight, bias, topi.nn.relu(topi.add(out, bias))]


def _layer_norm() -> Tensors:
    data, gamma, beta = tensor((24, 64), name="data"), tensor((64,), name="gamma"), tensor((64,), name="beta")
    return [data, gamma, beta, topi.nn.layer_norm(data, gamma, beta, [1], 1e-5)]


def _gather(dtype: str = "float32", index: str = "int64", wraps: bool = False) -> Tensors:
    table, at = tensor((50, 16), dtype, "table"), tensor((40,), index, "at")
    where = at
    if wraps:
        zero, rows = tvm.tirx.const(0, index), tvm.tirx.const(50, index)
        where = te.compute((40,), lambda i: tvm.tirx.Select(at[i] < zero, at[i] + rows, at[i]), name="where")
    return [table, at, te.compute((40, 16), lambda i, j: table[where[i], j], name="taken")]


def _where(dtype: str = "float32") -> Tensors:
    condition, x, y = tensor((13, 37), "bool", "condition"), tensor((13, 37), dtype), tensor((13, 37), dtype, "y")
    return [condition, x, y, topi.where(condition, x, y)]


def _quantize(dtype: str = "int8", zero: float = 3.0) -> Tensors:
    low, high = (-128.0, 127.0) if dtype == "int8" else (0.0, 255.0)
    return _unary(lambda x: topi.cast(topi.clip(topi.add(topi.round(topi.multiply(x, 20.0)), zero), low, high), dtype))


def _requantize() -> Tensors:
    """Sums in int32 back to int8, by a multiplier and a shift."""
    x = tensor((13, 37), "int32")
    shifted = te.compute(x.shape, lambda *at: (x[at] * 77 + 1024) >> 11, name="shifted")
    return [x, topi.cast(topi.clip(shifted, -128, 127), "int8")]


def _padded(dtype: str) -> Tensors:
    return _unary(lambda x: topi.nn.pad(x, (1, 2), (2, 1), 0), dtype)


def _concatenated(dtype: str) -> Tensors:
    x, y = tensor((7, 12), dtype), tensor((7, 9), dtype, "y")
    return [x, y, topi.concatenate([x, y], axis=1)]


def _pool(kind: str, dtype: str = "float32") -> Tensors:
    return _unary(
        lambda x: topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), kind, layout="NHWC"), dtype, (1, 12, 12, 8)
    )


def _relu6(x: te.Tensor) -> te.Tensor:
    return topi.clip(x, 0.0, 6.0)


def _gelu(x: te.Tensor) -> te.Tensor:
    half = te.compute(x.shape, lambda *at: tvm.tirx.erf(x[at] * 0.70710678), name="erf")
    return te.compute(x.shape, lambda *at: x[at] * 0.5 * (1.0 + half[at]), name="gelu")


PROGRAMS: dict[str, Callable[[], Tensors]] = {
    **{
        f"transpose {d}": lambda d=d: _unary(lambda x: topi.transpose(x, (1, 0)), d)
        for d in ("float32", "int8", "float16")
    },
    **{f"pad {d}": lambda d=d: _padded(d) for d in ("float32", "uint8", "bfloat16")},
    **{f"concatenate {d}": lambda d=d: _concatenated(d) for d in ("float32", "int64")},
    "slice": lambda: _unary(lambda x: topi.strided_slice(x, [1, 2], [12, 36], [2, 3])),
    "flip": lambda: _unary(lambda x: topi.flip(x, 1), "int16"),
    **{
        f"cast {a} {b}": lambda a=a, b=b: _unary(lambda x: topi.cast(x, b), a)
        for a, b in (
            ("int8", "int32"),
            ("uint8", "int32"),
            ("int16", "int32"),
            ("uint16", "float32"),
            ("int8", "float32"),
            ("uint32", "int64"),
            ("int32", "float32"),
            ("int64", "int32"),
            ("int32", "int8"),
            ("int32", "uint8"),
            ("bool", "float32"),
            ("float32", "int32"),
            ("float32", "uint8"),
            ("float32", "int8"),
            ("float32", "int64"),
            ("float16", "float32"),
            ("float32", "float16"),
            ("bfloat16", "float32"),
            ("float32", "bfloat16"),
            ("float64", "float32"),
            ("float32", "bool"),
        )
    },
    **{
        f"add {d}": lambda d=d: _binary(topi.add, d)
        for d in ("float32", "int8", "uint8", "int16", "int32", "int64", "float16")
    },
    **{
        f"subtract {d}": lambda d=d: _binary(topi.subtract, d)
        for d in ("float32", "int8", "int32", "bfloat16", "float64")
    },
    **{f"multiply {d}": lambda d=d: _binary(topi.multiply, d) for d in ("float32", "int32")},
    "divide": lambda: _binary(topi.divide),
    **{f"floor_divide {d}": lambda d=d: _binary(topi.floor_divide, d) for d in ("int32", "int8", "int64")},
    **{f"floor_mod {d}": lambda d=d: _binary(topi.floor_mod, d) for d in ("int32", "int16")},
    **{f"maximum {d}": lambda d=d: _binary(topi.maximum, d) for d in ("float32", "int8", "int64")},
    **{f"less {d}": lambda d=d: _binary(topi.less, d) for d in ("float32", "int16", "uint8")},
    **{f"equal {d}": lambda d=d: _binary(topi.equal, d) for d in ("float32", "int32")},
    "shift": lambda: _binary(topi.right_shift, "int32"),
    "shift by constant": lambda: _unary(lambda x: topi.right_shift(x, tvm.tirx.const(3, "int16")), "int16"),
    "relu": lambda: _unary(topi.nn.relu),
    "relu float16": lambda: _unary(topi.nn.relu, "float16"),
    "relu6": lambda: _unary(_relu6),
    "leaky relu": lambda: _unary(lambda x: topi.nn.leaky_relu(x, 0.1)),
    "negative": lambda: _unary(topi.negative),
    "abs": lambda: _unary(topi.abs),
    "abs int8": lambda: _unary(topi.abs, "int8"),
    "sign": lambda: _unary(topi.sign),
    **{
        name: lambda name=name: _pointwise(name)
        for name in ("floor", "ceil", "trunc", "nearbyint", "sqrt", "exp", "log")
    },
    "reciprocal": lambda: _unary(lambda x: te.compute(x.shape, lambda *at: 1.0 / x[at], name="reciprocal")),
    "sigmoid": lambda: _unary(topi.sigmoid),
    "tanh": lambda: _unary(topi.tanh),
    "gelu": lambda: _unary(_gelu),
    "silu": lambda: _unary(lambda x: topi.multiply(x, topi.sigmoid(x))),
    "scaled": lambda: _unary(lambda x: topi.add(topi.multiply(x, 1.7), 0.25)),
    "isnan": lambda: _unary(lambda x: te.compute(x.shape, lambda *at: tvm.tirx.isnan(x[at]), name="isnan")),
    "where": _where,
    "where int8": lambda: _where("int8"),
    "quantize": _quantize,
    "quantize uint8": lambda: _quantize("uint8"),
    "dequantize": lambda: _unary(lambda x: topi.multiply(topi.subtract(topi.cast(x, "float32"), 3.0), 0.05), "uint8"),
    "requantize": _requantize,
    "gather": _gather,
    "gather int8": lambda: _gather("int8", "int32"),
    "gather from the end": lambda: _gather(wraps=True),
    "take clipped": lambda: [
        *(pair := (tensor((50, 16), name="table"), tensor((40,), "int32", "at"))),
        topi.take(*pair, axis=0, mode="clip"),
    ],
    "max pool": lambda: _pool("max"),
    "max pool int8": lambda: _pool("max", "int8"),
    "average pool": lambda: _pool("avg"),
    "row max": lambda: _unary(lambda x: topi.max(x, axis=1), "float32", (24, 96)),
    "row min int32": lambda: _unary(lambda x: topi.min(x, axis=1), "int32", (24, 96)),
    "row sum": lambda: _unary(lambda x: topi.sum(x, axis=1), "float32", (24, 256)),
    "row sum int32": lambda: _unary(lambda x: topi.sum(x, axis=1), "int32", (24, 96)),
    "row mean float16": lambda: _unary(
        lambda x: topi.cast(topi.divide(topi.sum(topi.cast(x, "float32"), axis=1), 256.0), "float16"),
        "float16",
        (24, 256),
    ),
    "argmax": lambda: _unary(lambda x: topi.argmax(x, axis=1), "float32", (24, 50)),
    "any": lambda: _unary(lambda x: topi.any(x, axis=1), "bool", (24, 9)),
    "matmul": lambda: _matmul("float32", "float32", relu=True),
    "matmul float16": lambda: _matmul("float16", "float32", inner=512),
    "matmul bfloat16": lambda: _matmul("bfloat16", "float32", inner=512),
    "matmul int8": lambda: _matmul("int8", "int32"),
    "matmul uint8 int8": _mixed_matmul,
    "matmul float64": lambda: _matmul("float64", "float64"),
    "weights of bytes": _weights_of_bytes,
    "conv": lambda: _conv(3),
    "conv strided": lambda: _conv(3, stride=2),
    "conv float16": lambda: _conv(3, dtype="float16"),
    "depthwise": lambda: _conv(3, groups=8),
    "softmax": lambda: _unary(topi.nn.softmax, "float32", (24, 64)),
    "log softmax": lambda: _unary(topi.nn.log_softmax, "float32", (24, 64)),
    "layer norm": _layer_norm,
}
