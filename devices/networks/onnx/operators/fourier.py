"""ONNX's Fourier transforms as products with constant matrices of cosines and sines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from devices.networks.onnx.nodes import Array, NodeWriter, OnnxNode, UnknownValueError

_LONGEST = 4096
"""Most points of one transform: its two matrices have that many rows and columns."""


def fourier(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write a DFT: (..., points, ..., 1 or 2) to (..., frequencies, ..., 2), real and imaginary parts last."""
    shape = node.shape(0)
    axis = (int(node.constant_or(2, -2)) if node.graph.opset >= 20 else node.attributes["axis"]) % len(shape)
    points = int(node.constant_or(1, shape[axis]).reshape(()))
    one_sided, inverse = bool(node.attributes["onesided"]), bool(node.attributes["inverse"])
    if points > _LONGEST or (one_sided and inverse):
        raise UnknownValueError
    used = min(points, shape[axis])
    order = [at for at in range(len(shape)) if at != axis]
    order = [*order[:-1], axis]  # without the axis of parts, the points last
    data = write.take(node.input(0), 0, used, axis)
    parts = []
    for part in range(shape[-1]):
        alone = write.reshape(
            write.take(data, part, part + 1, len(shape) - 1), [*shape[:axis], used, *shape[axis + 1 : -1]]
        )
        parts.append(write("Transpose", alone, perm=order))
    cosines, sines = _matrices(used, points, one_sided, inverse, node.dtype(0))
    results = _transformed(parts, cosines, sines, write)
    back = np.argsort(order).tolist()
    return [write("Concat", *(write.unsqueeze(write("Transpose", x, perm=back), -1) for x in results), axis=-1)]


def short_time_fourier(node: OnnxNode, write: NodeWriter) -> Sequence[str] | None:
    """Write an STFT: (batch, samples, 1 or 2) to (batch, frames, frequencies, 2)."""
    batch, samples, *parts_of = node.shape(0)
    count = parts_of[0] if parts_of else 1
    step = int(node.constant(1).reshape(()))
    length = int(node.constant(3).reshape(())) if node.has(3) else node.shape(2)[0]
    if length > _LONGEST:
        raise UnknownValueError
    frames = (samples - length) // step + 1
    places = np.arange(frames)[:, None] * step + np.arange(length)
    parts = []
    for part in range(count):
        signal = node.input(0) if not parts_of else write.take(node.input(0), part, part + 1, 2)
        framed = write("Gather", write.reshape(signal, [batch, samples]), places, axis=1)
        parts.append(write("Mul", framed, node.input(2)) if node.has(2) else framed)
    cosines, sines = _matrices(length, length, bool(node.attributes["onesided"]), False, node.dtype(0))
    results = _transformed(parts, cosines, sines, write)
    return [write("Concat", *(write.unsqueeze(result, 3) for result in results), axis=3)]


def _transformed(parts: Sequence[str], cosines: Array, sines: Array, write: NodeWriter) -> tuple[str, str]:
    """Return (a + bi) * (cos + i sin) of every row: its real and imaginary parts."""
    real, imaginary = write("MatMul", parts[0], cosines), write("MatMul", parts[0], sines)
    if len(parts) == 1:
        return real, imaginary
    across, along = write("MatMul", parts[1], sines), write("MatMul", parts[1], cosines)
    return write("Sub", real, across), write("Add", imaginary, along)


def _matrices(
    used: int, points: int, one_sided: bool, inverse: bool, dtype: np.dtype[np.generic]
) -> tuple[Array, Array]:
    """Return exp(-2 pi i jk / points), or its inverse: (used points, frequencies)."""
    frequencies = points // 2 + 1 if one_sided else points
    # The product of the indices is reduced modulo the points, in integers, so that angles stay small and exact.
    turns = (np.arange(used)[:, None] * np.arange(frequencies)) % points / points
    angles = (2 if inverse else -2) * np.pi * turns
    scale = 1 / points if inverse else 1
    return (np.cos(angles) * scale).astype(dtype), (np.sin(angles) * scale).astype(dtype)
