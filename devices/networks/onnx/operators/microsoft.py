"""Operators of com.microsoft on floats, written with ONNX's operators. ONNX Runtime's optimiser and its quantiser of
weights produce them. :mod:`devices.networks.onnx.operators.quantization` has those on quantised tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from devices.networks.onnx.nodes import Array, NodeWriter, OnnxNode, UnknownValueError
from devices.networks.onnx.operators.rewrites import Rewrite

_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}
"""The names of the parameters of each activation."""


def _product(node: OnnxNode, write: NodeWriter) -> Sequence[str]:
    """Write a product of matrices, which may be transposed, times a number."""
    settings = node.attributes
    if settings.get("transBatchA") or settings.get("transBatchB"):
        raise UnknownValueError
    result = write("MatMul", *(_turned(node, at, write) for at in range(2)))
    factor = settings.get("alpha", 1.0)
    return [result if factor == 1 else write("Mul", result, np.asarray(factor, node.dtype(0)))]


def _turned(node: OnnxNode, at: int, write: NodeWriter) -> str:
    if not node.attributes.get(f"trans{'AB'[at]}"):
        return node.input(at)
    rank = len(node.shape(at))
    return write("Transpose", node.input(at), perm=[*range(rank - 2), rank - 1, rank - 2])


def _convolution(node: OnnxNode, write: NodeWriter) -> Sequence[str]:
    """Write a convolution, the addition of another input, and its activation."""
    settings = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    result = write("Conv", *(node.input(at) for at in range(3) if node.has(at)), **settings)
    if node.has(3):
        result = write("Add", result, node.input(3))
    return [_activated(node, result, list(node.attributes.get("activation_params", ())), write)]


def _general_product(node: OnnxNode, write: NodeWriter) -> Sequence[str]:
    settings = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    parameters = [
        node.attributes[f"activation_{name}"] for name in ("alpha", "beta") if f"activation_{name}" in node.attributes
    ]
    result = write("Gemm", *(node.input(at) for at in range(3) if node.has(at)), **settings)
    return [_activated(node, result, parameters, write)]


def _activated(node: OnnxNode, value: str, parameters: Sequence[float], write: NodeWriter) -> str:
    kind = node.attributes.get("activation", "")
    if not kind:
        return value
    if kind == "Clip" and len(parameters) == 2:
        return write("Clip", value, *(np.asarray(bound, node.dtype(0)) for bound in parameters))
    if kind not in _ACTIVATIONS:
        raise UnknownValueError
    return write(kind, value, **dict(zip(_ACTIVATIONS[kind], parameters, strict=False)))


def _quick_gelu(node: OnnxNode, write: NodeWriter) -> Sequence[str]:
    factor = np.asarray(node.attributes.get("alpha", 1.702), node.dtype(0))
    return [write("Mul", node.input(0), write("Sigmoid", write("Mul", node.input(0), factor)))]


def _norm_of_sum(node: OnnxNode, write: NodeWriter) -> Sequence[str]:
    """Write the norm over the last axis of a sum. The sum is an output too."""
    centred = node.proto.op_type == "SkipLayerNormalization"
    if node.wants(1) or node.wants(2):
        raise UnknownValueError  # statistics, for training
    total = write("Add", node.input(0), node.input(1))
    bias = 4 if centred else 3
    if node.has(bias):
        total = write("Add", total, node.input(bias))
    last = len(node.shape(0)) - 1
    data = write("Sub", total, write.reduce("ReduceMean", total, last)) if centred else total
    variance = write.reduce("ReduceMean", write("Mul", data, data), last)
    epsilon = np.asarray(node.attributes.get("epsilon", 1e-12), node.dtype(0))
    scaled = write("Mul", write("Div", data, write("Sqrt", write("Add", variance, epsilon))), node.input(2))
    if centred and node.has(3):
        scaled = write("Add", scaled, node.input(3))
    return [scaled, "", "", total][: max(1, len(node.proto.output))]


def _product_with_few_bits(node: OnnxNode, write: NodeWriter) -> Sequence[str]:
    """Write a product with a constant matrix of few bits, with a scale for each block, as a product of floats."""
    settings = node.attributes
    rows, columns, bits = settings["N"], settings["K"], settings.get("bits", 4)
    size = settings["block_size"]
    blocks = -(-columns // size)
    if bits not in (2, 4, 8) or (node.has(4) and node.constant(4).size):
        raise UnknownValueError
    whole = _unpacked(node.constant(1).reshape(rows, -1), bits).reshape(rows, blocks, size)
    zeros: Array = np.full((rows, blocks), 1 << (bits - 1))
    if node.has(3):
        given = node.constant(3)
        zeros = given if given.dtype != np.uint8 else _unpacked(given.reshape(rows, -1), bits)
        zeros = zeros.reshape(rows, -1)[:, :blocks]
    scales = node.constant(2).reshape(rows, blocks, 1).astype(np.float32)
    weights = (whole - zeros[:, :, None].astype(np.float32)) * scales
    matrix = weights.reshape(rows, -1)[:, :columns].T.astype(node.dtype(0))
    result = write("MatMul", node.input(0), np.ascontiguousarray(matrix))
    return [write("Add", result, node.input(5)) if node.has(5) else result]


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the numbers that are packed in every row of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers: Array = (packed[:, :, None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(len(packed), -1)


REWRITES: dict[str, Rewrite] = {
    "FusedConv": _convolution,
    "FusedGemm": _general_product,
    "FusedMatMul": _product,
    "MatMulNBits": _product_with_few_bits,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _norm_of_sum,
    "SkipSimplifiedLayerNormalization": _norm_of_sum,
}
"""The rewrite of each operator."""
