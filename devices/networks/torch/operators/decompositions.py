"""Decompositions of torch's operators into others before TVM translates them.

torch decomposes all but its core operators; this module has the exceptions. It also has decompositions of core
operators that TVM does not support, or not for all types and arguments. Importing this module loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table, get_decompositions

from devices.networks.torch.operators import (
    arguments,
    functions,
    groups,
    order,
    quantization,
    scatters,
    vision,
    windows,
)

# Core ATen wraps every matrix product in reshapes and broadcasts, which then separate the product from the operators
# that should be fused with it. Everything else is decomposed: TVM misreads some whole operators (the momentum of
# aten.batch_norm becomes its epsilon).
WHOLE_OPERATORS = ("linear", "matmul")
_NORMS = {
    "native_layer_norm": (torch.float32, torch.float16, torch.bfloat16),
    "native_group_norm": (torch.float32, torch.float16),
}
"""Operators that are translated only for these types, and decomposed for others."""

_RESIZES = ("upsample_nearest2d", "upsample_bilinear2d")
_ATEN = torch.ops.aten


def decompose(program: torch.export.ExportedProgram, whole: Sequence[str]) -> torch.export.ExportedProgram:
    """Return ``program`` decomposed into operators, most of which TVM knows. Operators named in ``whole`` stay. Raises
    torch's errors."""
    table: Any = torch.export.default_decompositions()
    for name in whole:
        table.pop(getattr(_ATEN, name).default, None)
    for operator in windows.WHOLE_WINDOWS:
        table.pop(operator, None)
    for name, types in _NORMS.items():
        for norm, decomposition in get_decompositions([getattr(_ATEN, name)]).items():
            table[norm] = _unless_of(types, decomposition)
    group_norm = _ATEN.native_group_norm.default
    table[group_norm] = _with_weights(table[group_norm])
    table.update(_OURS)
    table.update(arguments.decompositions(program))
    table.update(functions.decompositions())
    table.update(order.decompositions())
    table.update(quantization.decompositions())
    table.update(scatters.decompositions())
    table.update(vision.decompositions())
    table.update(groups.decompositions())
    for resize, decomposition in get_decompositions([getattr(_ATEN, name).vec for name in _RESIZES]).items():
        table[resize] = _where_scales_differ(decomposition)
    attention = _ATEN.scaled_dot_product_attention.default
    table[attention] = _plain_attention(table[attention])
    result: torch.export.ExportedProgram = program.run_decompositions(table)
    return result


def decompose_further(program: torch.export.ExportedProgram, operators: Sequence[str]) -> torch.export.ExportedProgram:
    """Return ``program`` without those of ``operators`` (names such as ``trace.default``) that torch can decompose."""
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    named = [target for target in called if target.__name__ in operators and target in decomposition_table]
    if not named:
        return program
    result: torch.export.ExportedProgram = program.run_decompositions(dict(get_decompositions(named)))
    return result


def _variance_and_mean(
    data: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var(data, dim, correction=correction, keepdim=keepdim), torch.mean(data, dim, keepdim=keepdim)


def _elu(data: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    """Return an ELU with scales, which TVM ignores: SELU and CELU have them."""
    below = torch.exp(torch.clamp(data, max=0) * input_scale) - 1
    return torch.clamp(data, min=0) * scale + below * (alpha * scale)


def _adaptive_max_pool2d(data: torch.Tensor, output_size: list[int]) -> Any:
    """Pool window by window: rows, then columns. The indices of the maxima are not computed, as only training reads
    them."""
    rows, columns = (_windows(extent, count) for extent, count in zip(data.shape[-2:], output_size, strict=True))
    for axis, parts_of in ((-2, rows), (-1, columns)):
        parts = [data.narrow(axis, start, end - start).amax(axis, keepdim=True) for start, end in parts_of]
        data = torch.cat(parts, axis)
    return data, torch.zeros_like(data, dtype=torch.int64)


def _windows(extent: int, count: int) -> list[tuple[int, int]]:
    return [(at * extent // count, -(-(at + 1) * extent // count)) for at in range(count)]


def _embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    _scale_grad_by_freq: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sum up rows of a table by bag: a product with the matrix that tells which row is in which bag."""
    places = torch.arange(len(indices), device=indices.device)
    starts = offsets[:-1] if include_last_offset else offsets
    ends = torch.cat([starts[1:], torch.full_like(starts[:1], len(indices))])
    inside = (places >= starts[:, None]) & (places < ends[:, None])
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    members = inside.to(rows.dtype)
    if mode == _MAXIMUM:
        largest = torch.where(inside[:, :, None], rows, float("-inf")).amax(1)
        result = torch.where(inside.any(1, keepdim=True), largest, 0.0)
    else:
        result = members @ rows
        if mode == _MEAN:
            result = result / torch.clamp(members.sum(1, keepdim=True), min=1)
    return result, torch.zeros_like(indices), torch.zeros_like(offsets), torch.zeros_like(offsets)


def _distances(left: torch.Tensor, right: torch.Tensor, p: float, _compute_mode: int | None) -> torch.Tensor:
    """Return the distances of every row of ``left`` to every row of ``right``. The largest difference (``p`` infinite)
    ignores NaN, as in torch."""
    apart = torch.abs(left.unsqueeze(-2) - right.unsqueeze(-3))
    if p == 2:
        return torch.sqrt((apart * apart).sum(-1))
    if p == float("inf"):
        return torch.where(torch.isnan(apart), 0.0, apart).amax(-1)
    if p == 0:
        return torch.where(torch.isnan(apart), apart, (apart != 0).to(left.dtype)).sum(-1)
    return apart.sum(-1) if p == 1 else (apart**p).sum(-1) ** (1 / p)


def _bilinear(
    left: torch.Tensor, right: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return ``left @ weight[o] @ right`` for every output ``o``: one matrix product, then sums."""
    outputs, width, across = weight.shape
    product = left @ weight.permute(1, 0, 2).reshape(width, outputs * across)
    result = (product.reshape(*left.shape[:-1], outputs, across) * right.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def _folded(
    data: torch.Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> torch.Tensor:
    """Return the sum of sliding blocks (``nn.Fold``): for each position in a block, add its pixels of all blocks, which
    are ``stride`` apart."""
    rows, columns = kernel_size
    sizes = [size + 2 * pad for size, pad in zip(output_size, padding, strict=True)]
    counts = [
        (size - step * (extent - 1) - 1) // apart + 1
        for size, step, extent, apart in zip(sizes, dilation, kernel_size, stride, strict=True)
    ]
    blocks = data.reshape(*data.shape[:-2], -1, rows, columns, *counts)
    total = None
    for row in range(rows):
        for column in range(columns):
            pixels = blocks[..., row, column, :, :]
            for axis, at in ((-2, row * dilation[0]), (-1, column * dilation[1])):
                pixels = _spread(pixels, axis, stride[axis], at, sizes[axis])
            total = pixels if total is None else total + pixels
    assert total is not None, "a kernel has a place"
    for axis in (-2, -1):
        total = total.narrow(axis, padding[axis], output_size[axis])
    return total


def _spread(data: torch.Tensor, axis: int, apart: int, first: int, size: int) -> torch.Tensor:
    """Return an axis of ``size`` zeros with the elements of ``data`` at ``first`` and every ``apart`` after it."""
    count = data.shape[axis]
    moved = data.movedim(axis, -1).unsqueeze(-1)
    after = size - first - count * apart
    line = torch.nn.functional.pad(moved, (0, apart - 1)).flatten(-2)
    line = torch.nn.functional.pad(line, (first, max(after, 0))).narrow(-1, 0, size)
    return line.movedim(-1, axis)


def _power(data: torch.Tensor, exponent: float) -> Any:
    """Return a square root, or its reciprocal, as torch computes it. The root of minus infinity is NaN, whereas the
    power is infinity."""
    if not data.is_floating_point() or exponent not in (0.5, -0.5):
        return NotImplemented
    return torch.sqrt(data) if exponent > 0 else torch.rsqrt(data)


def _remainder(data: torch.Tensor, divisor: torch.Tensor | float) -> Any:
    """Return the remainder with the divisor's sign. TVM subtracts a multiple, which gives NaN if the divisor is
    infinite."""
    if not data.is_floating_point():
        return NotImplemented
    rest, divisor, differs = _rest(data, divisor)
    return torch.where(differs, rest + divisor, rest)


def _divided(data: torch.Tensor, divisor: torch.Tensor | float, *, rounding_mode: str | None = None) -> Any:
    """Return a quotient of floats that is rounded down, computed from the remainder as in torch. A quotient without
    rounding is a plain division."""
    if rounding_mode is None:
        return data / divisor
    if rounding_mode != "floor" or not data.is_floating_point():
        return NotImplemented
    rest, divisor, differs = _rest(data, divisor)
    whole = torch.round((data - rest) / divisor)
    return torch.where(divisor == 0, data / divisor, torch.where(differs, whole - 1, whole))


def _rest(data: torch.Tensor, divisor: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the remainder with the sign of ``data``, the divisor as a tensor, and true where the remainder is not zero
    and differs from it in sign."""
    rest = torch.fmod(data, divisor)
    if not isinstance(divisor, torch.Tensor):
        divisor = torch.full((), divisor, dtype=data.dtype, device=data.device)  # decompositions cannot have constants
    return rest, divisor, (rest != 0) & ((rest < 0) != (divisor < 0))


_MEAN, _MAXIMUM = 1, 2  # modes of embedding bags

_OURS: dict[Any, Callable[..., Any]] = {
    _ATEN.var_mean.correction: _variance_and_mean,
    _ATEN.elu.default: _elu,
    _ATEN.adaptive_max_pool2d.default: _adaptive_max_pool2d,
    _ATEN._embedding_bag.default: _embedding_bag,
    _ATEN._embedding_bag_forward_only.default: _embedding_bag,
    _ATEN._cdist_forward.default: _distances,
    _ATEN.bilinear.default: _bilinear,
    _ATEN.col2im.default: _folded,
    _ATEN.pow.Tensor_Scalar: _power,
    _ATEN.remainder.Tensor: _remainder,
    _ATEN.remainder.Scalar: _remainder,
    _ATEN.div.Tensor_mode: _divided,
    _ATEN.div.Scalar_mode: _divided,
}


def _unless_of(types: Sequence[torch.dtype], decomposition: Callable[..., Any]) -> Callable[..., Any]:
    def norm(data: torch.Tensor, *rest: Any) -> Any:
        if data.dtype in types:
            return NotImplemented  # torch leaves the operator whole
        return decomposition(data, *rest)

    return norm


def _with_weights(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a group norm that always has weights and biases, as TVM's needs them."""

    def norm(data: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *rest: Any) -> Any:
        if weight is not None and bias is not None:
            return otherwise(data, weight, bias, *rest)
        ones, zeros = (data.new_full((data.shape[1],), value) for value in (1.0, 0.0))
        return _ATEN.native_group_norm(data, ones if weight is None else weight, zeros if bias is None else bias, *rest)

    return norm


def _where_scales_differ(decomposition: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Decompose a resize if a size was rounded: TVM then steps by the ratio of the sizes, torch by the given factor."""

    def resize(data: torch.Tensor, output_size: list[int] | None, *rest: Any) -> Any:
        factors = rest[-1] if rest else None
        sizes = data.shape[2:]
        exact = factors is None or all(
            int(size * factor) == size * factor for size, factor in zip(sizes, factors, strict=True)
        )
        return NotImplemented if exact else decomposition(data, output_size, *rest)

    return resize


def _plain_attention(otherwise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return attention without torch's guard against rows in which everything is masked. The guard takes five more
    passes over the scores, and without a mask there is no such row. With a mask, ``otherwise`` (torch's own
    decomposition) is used."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if attn_mask is not None or dropout_p or enable_gqa:
            return otherwise(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        scores = query @ key.transpose(-1, -2)
        if query.dtype in (torch.float16, torch.bfloat16):
            scores = scores.float()
        scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
            scores = torch.where(seen, scores, float("-inf"))
        return torch.softmax(scores, -1).to(value.dtype) @ value

    return attention
