"""Small programs of every kind of operator that the design spaces are tested on, and the targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tvm import te, topi

from devices.sketches.spaces import DesignSpace
from devices.targets import resolve_target
from fleet_tune.base.domain import Task
from tests.helpers.programs import program_task

Tensors = tuple[te.Tensor, ...]

TARGETS: dict[str, dict[str, object]] = {
    "avx512": {"kind": "llvm", "mcpu": "x86-64-v4", "mtriple": "x86_64-linux-gnu"},
    "avx2": {"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"},
    "sm_90": {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152},
    "sm_87": {"kind": "cuda", "arch": "sm_87", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152},
    "sm_80": {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152},
}


def _matmul(
    relu: bool = False, rows: int = 24, out: str = "float32", dtype: str = "float32", size: int = 32
) -> Tensors:
    a, b = te.placeholder((rows, size), dtype, name="a"), te.placeholder((size, size), dtype, name="b")
    r = te.reduce_axis((0, size), "r")
    c = te.compute((rows, size), lambda i, j: te.sum(a[i, r].astype(out) * b[r, j].astype(out), axis=r), name="c")
    return a, b, topi.nn.relu(c) if relu else c


def _batched(dtype: str = "float32") -> Tensors:
    a, b = te.placeholder((3, 16, 32), dtype, name="a"), te.placeholder((3, 32, 16), dtype, name="b")
    return a, b, topi.nn.batch_matmul(a, b, transpose_b=False)


def _conv(kernel: int, channels: int = 16, groups: int = 1, stride: int = 1, dtype: str = "float32") -> Tensors:
    data = te.placeholder((1, 8, 8, channels), dtype, name="data")
    weight = te.placeholder((kernel, kernel, channels // groups, 16), dtype, name="weight")
    bias = te.placeholder((1, 1, 1, 16), name="bias")
    if dtype == "float32":
        out = topi.nn.conv(data, weight, stride, kernel // 2, 1, groups, "NHWC", "HWIO")
    else:
        out = topi.nn.conv2d_nhwc(data, weight, stride, kernel // 2, 1, out_dtype="float32")
    return data, weight, bias, topi.nn.relu(topi.add(out, bias))


def _small_image(kernel: tuple[int, ...], size: tuple[int, ...], channels: int = 32) -> Tensors:
    """A convolution of an image of so few points that sums are split; some axes of the kernel have length 1."""
    data = te.placeholder((1, *size, channels), name="data")
    weight = te.placeholder((*kernel, channels, 8), name="weight")
    bias = te.placeholder((*[1] * (len(size) + 1), 8), name="bias")
    layouts = ("NHWC", "HWIO") if len(size) == 2 else ("NDHWC", "DHWIO")
    return data, weight, bias, topi.nn.relu(topi.add(topi.nn.conv(data, weight, 1, 0, 1, 1, *layouts), bias))


def _rows(rule: Callable[[te.Tensor], te.Tensor], shape: tuple[int, ...] = (24, 64)) -> Tensors:
    data = te.placeholder(shape, name="data")
    return data, rule(data)


def _variance(data: te.Tensor) -> te.Tensor:
    length = float(int(data.shape[-1]))
    centred = topi.subtract(data, topi.divide(topi.sum(data, axis=-1, keepdims=True), length))
    return topi.divide(topi.sum(topi.multiply(centred, centred), axis=-1), length)


def _layer_norm() -> Tensors:
    data = te.placeholder((24, 64), name="data")
    gamma, beta = te.placeholder((64,), name="gamma"), te.placeholder((64,), name="beta")
    return data, gamma, beta, topi.nn.layer_norm(data, gamma, beta, [1], 1e-5)


def _scaled_rows() -> Tensors:
    data, scale = te.placeholder((12, 2, 40), name="data"), te.placeholder((40,), name="scale")
    return data, scale, topi.multiply(data, scale)


WORKLOADS: dict[str, Callable[[], Tensors]] = {
    "matmul": _matmul,
    "matmul-relu": lambda: _matmul(relu=True),
    "dense": lambda: _matmul(rows=1),
    "batched": _batched,
    "conv3": lambda: _conv(3),
    "conv3-stride2": lambda: _conv(3, stride=2),
    "conv1": lambda: _conv(1),
    "depthwise": lambda: _conv(3, groups=16),
    "squeeze": lambda: _small_image((1, 1), (1, 1)),
    "squeeze-wide": lambda: _small_image((1, 3), (1, 4)),
    "squeeze-tall": lambda: _small_image((3, 1), (4, 1)),
    "conv3d": lambda: _small_image((1, 1, 3), (1, 1, 4)),
    "softmax": lambda: _rows(topi.nn.softmax),
    "softmax-heads": lambda: _rows(topi.nn.softmax, (3, 12, 128)),
    "log-softmax": lambda: _rows(topi.nn.log_softmax, (24, 128)),
    "variance": lambda: _rows(_variance, (1, 24, 96)),
    "layer-norm": _layer_norm,
    "global-pool": lambda: _rows(lambda x: topi.nn.adaptive_pool(x, (1, 1), "avg", layout="NHWC"), (1, 7, 7, 32)),
    "row-sum": lambda: _rows(lambda x: topi.sum(x, axis=1), (4, 1024)),
    "transpose": lambda: _rows(lambda x: topi.transpose(x, (1, 0))),
    "relu": lambda: _rows(topi.nn.relu),
    "scaled-rows": _scaled_rows,
    "tiny": lambda: _rows(topi.nn.relu, (4, 6)),
    "odd": lambda: _rows(lambda x: topi.nn.relu(topi.transpose(x, (1, 0, 2))), (7, 30, 13)),
    "reshaped": lambda: _rows(lambda x: topi.reshape(topi.transpose(x, (0, 2, 1, 3)), (32, 64)), (1, 4, 32, 16)),
    "large": lambda: _rows(topi.nn.relu, (8, 64, 1024)),
    "half-matmul": lambda: _matmul(relu=True, rows=64, dtype="float16", size=64),
    "half-batched": lambda: _batched("float16"),
    "half-conv": lambda: _conv(3, dtype="float16"),
}

# Too many points to be walked through, but large enough to ask too much of a device.
WIDE: dict[str, Callable[[], Tensors]] = {
    "wide-matmul": lambda: _matmul(rows=512, size=512),
    "wide-half-matmul": lambda: _matmul(relu=True, rows=1024, dtype="float16", size=1024),
    "attention-softmax": lambda: _rows(topi.nn.softmax, (12, 128, 128)),
}


@cache
def task(target: str, workload: str) -> Task:
    tensors = (WORKLOADS | WIDE)[workload]()
    return program_task(tensors, resolve_target(TARGETS[target], threads=2), name=workload, device_class=target)


@cache
def space(target: str, workload: str) -> DesignSpace:
    return DesignSpace(task(target, workload))
