"""Operators of torch, each in forms that vary its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Data(NamedTuple):
    """The inputs that every form gets."""

    x: Tensor
    """``(2, 4, 9, 10)``"""
    y: Tensor
    """As ``x``."""
    p: Tensor
    """``(4, 1, 10)``, positive."""
    line: Tensor
    """``(2, 4, 11)``"""
    space: Tensor
    """``(1, 2, 5, 6, 7)``"""
    i: Tensor
    """``(3, 5)`` integers from 0 to 3."""
    ties: Tensor
    """``(4, 6)`` whole numbers as floats, of which some are equal."""
    boxes: Tensor
    """``(2, 5)``: image, left, top, right and bottom."""


Form = Callable[[Data], Tensor | tuple[Tensor, ...]]


def example() -> Data:
    torch.manual_seed(0)
    return Data(
        torch.randn(2, 4, 9, 10),
        torch.randn(2, 4, 9, 10),
        torch.rand(4, 1, 10) + 0.5,
        torch.randn(2, 4, 11),
        torch.randn(1, 2, 5, 6, 7),
        torch.randint(0, 4, (3, 5)),
        torch.randint(-2, 3, (4, 6)).float(),
        torch.tensor([[0.0, 0.7, 1.2, 5.3, 7.9], [1.0, 2.0, 0.0, 8.0, 6.0]]),
    )


def _called(function: Callable[..., Any], of: str, *arguments: Any, **options: Any) -> tuple[str, Form]:
    """A form that calls ``function`` with the input ``of`` first, and its name."""
    given = [*map(str, arguments), *(f"{name}={value}" for name, value in options.items())]
    return f"{function.__name__} {of} {', '.join(given)}", lambda d: function(getattr(d, of), *arguments, **options)


def _pools() -> Iterator[tuple[str, Form]]:
    for rank, of in ((1, "line"), (2, "x"), (3, "space")):
        varied: list[dict[str, Any]] = [
            {}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"ceil_mode": True, "padding": 1, "stride": 2},
        ]  # fmt: skip
        average = [{"count_include_pad": False, **each} for each in varied]
        if rank > 1:
            average += [{"divisor_override": 5, **each} for each in (*varied, *average)]
        largest = [{"dilation": 2, **each} for each in varied]
        for each in (*varied, *average):
            yield _called(getattr(functional, f"avg_pool{rank}d"), of, 3, **each)
        for each in (*varied, *largest):
            yield _called(getattr(functional, f"max_pool{rank}d"), of, 3, **each)
        for size in (1, 3):
            yield _called(getattr(functional, f"adaptive_avg_pool{rank}d"), of, size)
            yield _called(getattr(functional, f"adaptive_max_pool{rank}d"), of, size)
    yield _called(functional.avg_pool2d, "x", (2, 3), (1, 2), (1, 0), divisor_override=3)
    yield _called(functional.avg_pool2d, "line", 3, 2, 1, divisor_override=2)
    yield _called(functional.lp_pool2d, "x", 3, 2, 2, True)
    yield _called(functional.lp_pool1d, "line", 2, 3)
    for options in ({}, {"padding": 1}, {"stride": 1}, {"dilation": 2}, {"ceil_mode": True}):
        yield _called(functional.max_pool2d, "x", 3, return_indices=True, **options)
    yield _called(functional.max_pool1d, "line", 3, return_indices=True)
    yield _called(functional.max_pool3d, "space", 2, return_indices=True)
    yield _called(functional.adaptive_max_pool2d, "x", 3, return_indices=True)
    yield "max_unpool2d", lambda d: functional.max_unpool2d(*functional.max_pool2d(d.x, 2, return_indices=True), 2)
    yield "max_unpool1d", lambda d: functional.max_unpool1d(*functional.max_pool1d(d.line, 2, return_indices=True), 2)


def _convolutions() -> Iterator[tuple[str, Form]]:
    def weights(*shape: int) -> Tensor:
        return torch.linspace(-1, 1, torch.Size(shape).numel()).sin().view(shape)

    for rank, of, channels in ((1, "line", 4), (2, "x", 4), (3, "space", 2)):
        varied: list[dict[str, Any]] = [
            {}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2}, {"bias": weights(6)},
            {"padding": 2, "stride": 2, "dilation": 2, "groups": 2},
        ]  # fmt: skip
        for each in (*varied, {"padding": "same"}, {"padding": "valid"}):
            kernel = weights(6, channels // each.get("groups", 1), *[3] * rank)
            name = f"conv{rank}d {' '.join(map(str, each))} {each.get('padding', '')}"
            yield (
                name,
                lambda d, of=of, kernel=kernel, rank=rank, each=each: getattr(functional, f"conv{rank}d")(
                    getattr(d, of), kernel, **each
                ),
            )
        for each in (*varied, {"stride": 2, "output_padding": 1}, {"stride": 3, "padding": 1, "output_padding": 2}):
            kernel = weights(channels, 6 // each.get("groups", 1), *[3] * rank)
            name = f"conv_transpose{rank}d {each if 'bias' not in each else 'bias'}"
            yield (
                name,
                lambda d, of=of, kernel=kernel, rank=rank, each=each: getattr(functional, f"conv_transpose{rank}d")(
                    getattr(d, of), kernel, **each
                ),
            )


def _reductions() -> Iterator[tuple[str, Form]]:
    axes: list[dict[str, Any]] = [
        {}, {"dim": 1}, {"dim": -1, "keepdim": True}, {"dim": (0, 2)}, {"dim": (-1, 1), "keepdim": True},
    ]  # fmt: skip
    one = [each for each in axes if not isinstance(each.get("dim"), tuple)]
    for function in (torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp, torch.std, torch.var):
        for each in axes:
            yield _called(function, "x", **(each or {"dim": (0, 1, 2, 3)}))
    for function in (torch.sum, torch.mean, torch.prod, torch.std, torch.var, torch.max, torch.min, torch.median):
        yield _called(function, "line")
    for function in (torch.std, torch.var):
        for correction in (0, 1, 2):
            yield _called(function, "x", dim=1, correction=correction)
            yield _called(function, "x", correction=correction)
        yield _called(function, "x", unbiased=False)
    for function in (torch.std_mean, torch.var_mean):
        yield _called(function, "x", dim=(1, 2), correction=0, keepdim=True)
    for function in (torch.any, torch.all):
        for each in axes:
            yield f"{function.__name__} {each}", lambda d, f=function, each=each: f(d.x > 1.5, **each)
            yield (
                f"{function.__name__} of floats {each}",
                lambda d, f=function, each=each: f(torch.clamp(d.x, max=0), **each),
            )
        yield f"{function.__name__} of integers", lambda d, f=function: f(d.i - 1, dim=1)
    for function in (torch.argmax, torch.argmin):
        for each in one:
            yield _called(function, "x", **each)
        yield _called(function, "x", keepdim=True)
        yield _called(function, "ties", dim=0)
    for function in (torch.max, torch.min, torch.median, torch.mode, torch.nanmedian):
        for each in one[1:]:
            yield _called(function, "line", **each)
    for function in (torch.max, torch.min, torch.cummax, torch.cummin):
        yield _called(function, "ties", dim=1)
        yield _called(function, "i", dim=1)
    for function in (torch.cumsum, torch.cumprod, torch.logcumsumexp):
        yield _called(function, "x", 1)
        yield _called(function, "x", -1)
    for function in (torch.sum, torch.cumsum, torch.prod, torch.cumprod):
        yield _called(function, "i", dim=1)
        yield _called(function, "i", dim=1, dtype=torch.float32)
        yield f"{function.__name__} of booleans", lambda d, f=function: f(d.x > 0, dim=1)
    yield _called(torch.mean, "i", dim=1, dtype=torch.float32)
    yield _called(torch.sum, "x", dim=1, dtype=torch.float64)
    yield _called(torch.count_nonzero, "ties", dim=1)
    yield _called(torch.nansum, "x", dim=1)
    for order in (0, 1, 2, 3, -1, 0.5, float("inf"), float("-inf")):
        for each in ({}, {"dim": 1}, {"dim": (0, 2), "keepdim": True}):
            yield _called(torch.linalg.vector_norm, "x", order, **each)
    yield _called(torch.linalg.vector_norm, "x", 2, dim=1, dtype=torch.float64)
    yield _called(torch.norm, "x", "fro", dim=(2, 3))
    yield _called(torch.norm, "x", p=1, dim=1, keepdim=True)
    yield _called(torch.linalg.matrix_norm, "x")
    yield _called(torch.linalg.matrix_norm, "x", 1)
    yield _called(functional.normalize, "x", p=1.0, dim=2, eps=1e-3)
    yield "dist", lambda d: torch.dist(d.x, d.y, 3)
    for dim in (0, 1, -1):
        yield _called(functional.softmax, "x", dim=dim)
        yield _called(functional.log_softmax, "x", dim=dim)
        yield _called(functional.softmin, "x", dim=dim)
    yield _called(functional.softmax, "x", dim=1, dtype=torch.float64)


def _element_wise() -> Iterator[tuple[str, Form]]:
    for name in (
        "elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "logsigmoid", "mish", "relu", "relu6", "selu", "silu",
        "softplus", "softsign", "tanhshrink", "celu", "hardtanh", "hardshrink", "softshrink",
    ):  # fmt: skip
        yield _called(getattr(functional, name), "x")
    for name, options in (
        ("elu", {"alpha": 0.4}), ("gelu", {"approximate": "tanh"}), ("leaky_relu", {"negative_slope": 0.3}),
        ("softplus", {"beta": 2.0}), ("softplus", {"threshold": 0.5}), ("celu", {"alpha": 0.4}), ("glu", {"dim": 1}),
        ("hardtanh", {"min_val": -0.3}), ("hardtanh", {"max_val": 0.3}), ("hardshrink", {"lambd": 0.9}),
        ("softshrink", {"lambd": 0.9}), ("threshold", {"threshold": 0.3, "value": 7.0}), ("rrelu", {"lower": 0.2}),
    ):  # fmt: skip
        yield _called(getattr(functional, name), "x", **options)
    for name in (
        "abs", "acosh", "asinh", "atan", "ceil", "cos", "cosh", "deg2rad", "erf", "erfc", "exp", "exp2", "expm1",
        "floor", "frac", "isfinite", "isinf", "isnan", "neg", "reciprocal", "round", "sigmoid", "sign", "sgn",
        "signbit",
        "sin", "sinc", "sinh", "square", "tan", "tanh", "trunc", "logical_not", "positive", "log1p", "lgamma",
        "digamma",
        "erfinv", "i0", "nan_to_num",
    ):  # fmt: skip
        of = "p" if name in ("log1p", "lgamma", "digamma", "i0") else "x"
        if name == "acosh":
            yield name, lambda d: torch.acosh(d.p + 1)
        elif name == "erfinv":
            yield name, lambda d: torch.erfinv(torch.tanh(d.x) * 0.9)
        else:
            yield _called(getattr(torch, name), of)
    for name in ("log", "log2", "log10", "sqrt", "rsqrt"):
        yield _called(getattr(torch, name), "p")
    for name in ("acos", "asin", "atanh", "logit"):
        yield name, lambda d, name=name: getattr(torch, name)(torch.sigmoid(d.x) * 0.8 + 0.1)
    yield "logit eps", lambda d: torch.logit(torch.sigmoid(d.x * 3), eps=0.2)
    for decimals in (-1, 0, 2):
        yield f"round {decimals}", lambda d, n=decimals: torch.round(d.x * 30, decimals=n)
    yield _called(torch.round, "ties")
    yield "halves are rounded to even", lambda d: torch.round(d.ties / 2)
    for options in ({"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}, {"min": 0.5, "max": -0.5}):
        yield _called(torch.clamp, "x", **options)
    yield "clamp by tensors", lambda d: torch.clamp(d.x, -d.p, d.p)
    yield "clamp by one tensor", lambda d: torch.clamp(d.x, min=d.p)
    yield "clamp below a tensor", lambda d: torch.clamp(d.x, max=d.p)
    yield _called(torch.nan_to_num, "x", nan=1.0, posinf=2.0)
    for name in (
        "add", "sub", "mul", "div", "atan2", "copysign", "eq", "floor_divide", "fmod", "ge", "gt", "hypot", "le",
        "logaddexp", "logaddexp2", "logical_and", "logical_or", "logical_xor", "lt", "maximum", "minimum", "fmax",
        "fmin",
        "ne", "pow", "remainder", "xlogy", "float_power", "heaviside", "nextafter", "max", "min", "rsub", "true_divide",
    ):  # fmt: skip
        function = getattr(torch, name)
        first = "p" if name in ("pow", "xlogy", "float_power") else "x"
        yield f"{name} tensors", lambda d, f=function, of=first: f(getattr(d, of), d.p)
    for alpha in (2, -0.5):
        yield f"add alpha {alpha}", lambda d, a=alpha: torch.add(d.x, d.p, alpha=a)
        yield f"sub alpha {alpha}", lambda d, a=alpha: torch.sub(d.x, d.p, alpha=a)
        yield f"rsub alpha {alpha}", lambda d, a=alpha: torch.rsub(d.x, d.p, alpha=a)
        yield f"add a number, alpha {alpha}", lambda d, a=alpha: torch.add(d.x, 3, alpha=a)
        yield f"rsub of a number, alpha {alpha}", lambda d, a=alpha: torch.rsub(d.x, 3, alpha=a)
    for mode in (None, "floor", "trunc"):
        yield f"div {mode}", lambda d, mode=mode: torch.div(d.x, d.p, rounding_mode=mode)
        yield f"div by a number, {mode}", lambda d, mode=mode: torch.div(d.x, -0.7, rounding_mode=mode)
        yield f"div integers, {mode}", lambda d, mode=mode: torch.div(d.i - 2, d.i[:, :1] * 2 - 3, rounding_mode=mode)
        yield f"div integers by one, {mode}", lambda d, mode=mode: torch.div(d.i - 2, 2, rounding_mode=mode)
    for number in (0.7, -0.7, 2):
        yield f"remainder {number}", lambda d, n=number: torch.remainder(d.x, n)
        yield f"fmod {number}", lambda d, n=number: torch.fmod(d.x, n)
        yield f"pow {number}", lambda d, n=number: d.p**n
        yield f"number to the power, {number}", lambda d, n=number: abs(n) ** d.x
        yield f"floor_divide {number}", lambda d, n=number: d.x // n
    yield "remainder of a number", lambda d: torch.remainder(2.5, d.p)
    yield "integers: remainder", lambda d: torch.remainder(d.i - 2, -3)
    yield "integers: fmod", lambda d: torch.fmod(d.i - 2, 3)
    yield "integers: power", lambda d: (d.i - 2) ** 3
    yield "integers: product by a float", lambda d: d.i * 0.5
    yield "integers: bits", lambda d: (d.i & 2) | (d.i ^ 5)
    yield "integers: not", lambda d: ~d.i
    yield "booleans: bits", lambda d: ((d.x > 0) & (d.y > 0)) | ((d.x > 1) ^ (d.y > 1))
    yield "logical_and of floats", lambda d: torch.logical_and(d.ties, d.ties - 1)
    yield "addcmul", lambda d: torch.addcmul(d.x, d.y, d.p, value=0.3)
    yield "addcdiv", lambda d: torch.addcdiv(d.x, d.y, d.p, value=0.3)
    yield "lerp", lambda d: torch.lerp(d.x, d.y, 0.3)
    yield "lerp by a tensor", lambda d: torch.lerp(d.x, d.y, d.p)
    yield "where", lambda d: torch.where(d.x > 0, d.p, d.y)
    yield "where numbers", lambda d: torch.where(d.x > 0, 1.0, d.y)
    yield "masked_fill", lambda d: d.x.masked_fill(d.x > 0.3, -7)
    yield "prelu", lambda d: functional.prelu(d.x, d.p[:, 0, 0])
    yield "prelu of one", lambda d: functional.prelu(d.x, d.p[:1, 0, 0])
    yield "isin", lambda d: torch.isin(d.i, torch.tensor([0, 3]))
    yield "isin, inverted", lambda d: torch.isin(d.i, torch.tensor([0, 3]), invert=True)
    yield "isclose", lambda d: torch.isclose(d.x, d.x + d.p * 1e-3, rtol=1e-3, atol=1e-4)
    for right in (False, True):
        edges = torch.tensor([-2.0, -1.0, 0.0, 1.0])
        yield f"bucketize {right}", lambda d, e=edges, r=right: torch.bucketize(d.ties, e, right=r)
        yield f"searchsorted {right}", lambda d, e=edges, r=right: torch.searchsorted(e, d.ties, right=r)
    yield "bucketize int32", lambda d: torch.bucketize(d.ties, torch.tensor([-1.0, 0.0]), out_int32=True)
    for dtype in (torch.float64, torch.float16, torch.int32, torch.int8, torch.bool):
        yield f"to {dtype}", lambda d, t=dtype: (d.x * 9).to(t)
    yield "heaviside", lambda d: torch.heaviside(d.ties, torch.tensor(0.5))


def _moving() -> Iterator[tuple[str, Form]]:
    for options in (
        (torch.roll, 2), (torch.roll, (1, -3), (1, 2)), (torch.roll, -4, -1), (torch.flip, (0, -1)),
        (torch.rot90, 1, (2, 3)), (torch.rot90, -1, (1, 2)), (torch.diagonal,), (torch.diagonal, 1, 2, 3),
        (torch.diagonal, -2, -1, 1), (torch.tril,), (torch.tril, -1), (torch.triu, 2), (torch.narrow, 2, 3, 4),
        (torch.narrow, -1, -5, 4), (torch.select, 1, -1), (torch.unbind, 1), (torch.split, 4, 2),
        (torch.split, (3, 6), 2),
        (torch.chunk, 4, 3), (torch.tensor_split, 4, 2), (torch.movedim, 1, -1), (torch.swapaxes, 1, 3),
        (torch.flatten, 1, 2), (torch.flatten, 2), (torch.unflatten, 3, (2, -1)), (torch.squeeze,),
        (torch.unsqueeze, -2),
        (torch.repeat_interleave, 2, 1), (torch.tile, (2, 1)), (torch.permute, (0, 2, -1, 1)), (torch.ravel,),
        (torch.pixel_shuffle, 2), (torch.channel_shuffle, 2), (torch.diff,), (torch.diff, 2, 1), (torch.trapezoid, ),
        (torch.diag_embed,), (torch.diag_embed, 1, 0, 2),
    ):  # fmt: skip
        function, *arguments = options
        yield _called(function, "x", *arguments)
    for step in (1, 2, 3):
        yield f"slice by {step}", lambda d, s=step: d.x[:, :, 1:-1:s, ::s]
    yield "slice beyond the end", lambda d: d.x[:, :, -100:100, 4:]
    yield "squeeze dims", lambda d: d.p.squeeze(1) + d.p.squeeze((1, 2))
    yield "squeeze of what is not one", lambda d: d.x[:1, :, :1].squeeze((0, 1, 2))
    yield "slice_scatter", lambda d: torch.slice_scatter(d.x, d.y[:, :, 2:8:2], 2, 2, 8, 2)
    yield "slice_scatter from the end", lambda d: torch.slice_scatter(d.x, d.y[:, :, :3], 2, -4, -1)
    yield "slice_scatter to the end", lambda d: torch.slice_scatter(d.x, d.y[..., :4], -1, 6)
    yield "select_scatter", lambda d: torch.select_scatter(d.x, d.y[:, 0], 1, -1)
    yield "diagonal_scatter", lambda d: torch.diagonal_scatter(d.ties, d.ties[0, :4] + 9, 1)
    yield "cat", lambda d: torch.cat((d.x, d.y[:, :1]), 1)
    yield "cat of types", lambda d: torch.cat((d.i, d.i * 0.5), -1)
    yield "stack", lambda d: torch.stack((d.x, d.y), -2)
    yield "expand", lambda d: d.p.expand(-1, 3, -1)
    yield "repeat", lambda d: d.p.repeat(2, 1, 2, 1)
    yield "meshgrid", lambda d: torch.meshgrid(d.p[:, 0, 0], d.p[0, 0], indexing="xy")
    yield "meshgrid of rows", lambda d: torch.meshgrid(d.p[:, 0, 0], d.p[0, 0], indexing="ij")
    yield "block_diag", lambda d: torch.block_diag(d.ties, d.i.float())
    yield "cartesian_prod", lambda d: torch.cartesian_prod(d.p[:, 0, 0], d.p[0, 0])
    for pad, mode in itertools.product(((1, 2), (1, 2, 3, 0)), ("constant", "reflect", "replicate", "circular")):
        if mode == "constant" or len(pad) == 4:
            yield _called(functional.pad, "x", pad, mode)
        else:
            yield _called(functional.pad, "line", pad, mode)
    yield _called(functional.pad, "x", (1, 0, 2, 1), value=3.5)
    yield _called(functional.pad, "x", (-1, 2, -2, -1))
    yield _called(functional.pad, "x", (1, 1, 0, 0, 2, 1), value=-1.0)
    yield _called(functional.pad, "space", (1, 2, 0, 1, 1, 1), "replicate")
    for dim, descending in ((0, False), (-1, True)):
        yield _called(torch.sort, "line", dim, descending)
        yield _called(torch.argsort, "line", dim, descending)
        yield _called(torch.sort, "ties", dim=dim, descending=descending, stable=True)
    for options in ({}, {"dim": 1}, {"largest": False}, {"dim": 0, "largest": False}):
        yield _called(torch.topk, "ties" if options.get("dim") == 0 else "line", 2, **options)
    yield _called(torch.kthvalue, "line", 2, -1)
    yield "gather", lambda d: torch.gather(d.ties, 0, d.i[:, :4])
    yield "gather of fewer", lambda d: torch.gather(d.x, 2, d.i.view(1, 3, 5, 1)[:, :, :4])
    yield "take_along_dim", lambda d: torch.take_along_dim(d.ties, d.i[:, :1], 0)
    yield "index_select", lambda d: torch.index_select(d.x, 2, d.i[0])
    yield "take", lambda d: torch.take(d.ties, d.i)
    for dim in (0, 1, 2):
        index = [[0, 1, 0], [1, 0, 1]]
        yield (
            f"scatter {dim}",
            lambda d, dim=dim, index=index: torch.scatter(
                d.line, dim, torch.tensor([index]) if dim else torch.tensor([[[0, 1, 0]]]), d.line[:1, :2, :3] + 5
            ),
        )
        yield (
            f"scatter a number {dim}",
            lambda d, dim=dim, index=index: torch.scatter(d.line, dim, torch.tensor([index]), 2.5),
        )
    yield "index_add", lambda d: torch.index_add(d.ties, 1, d.i[0, :2], d.ties[:, :2], alpha=0.5)
    yield "index_fill", lambda d: torch.index_fill(d.ties, 1, d.i[0, :2], 9.0)
    yield "index_copy", lambda d: torch.index_copy(d.ties, 1, torch.tensor([4, 1]), d.ties[:, :2] + 9)
    yield "masked_scatter", lambda d: torch.where(d.ties > 0, d.ties, 0)
    yield "one_hot", lambda d: functional.one_hot(d.i, 5)
    yield "embedding", lambda d: functional.embedding(d.i, d.ties)
    yield "embedding with a padding", lambda d: functional.embedding(d.i, d.ties, padding_idx=1)
    for mode in ("sum", "mean", "max"):
        yield f"embedding_bag {mode}", lambda d, m=mode: functional.embedding_bag(d.i, d.ties, mode=m)
        yield (
            f"embedding_bag {mode} with a padding",
            lambda d, m=mode: functional.embedding_bag(d.i, d.ties, mode=m, padding_idx=1),
        )
    yield (
        "embedding_bag by weights",
        lambda d: functional.embedding_bag(d.i, d.ties, mode="sum", per_sample_weights=d.i.float() + 1),
    )
    yield "triu_indices", lambda d: d.ties[:, :4][tuple(torch.triu_indices(4, 4, 1))]
    for options in ({"kernel_size": 3}, {"kernel_size": (2, 3), "stride": 2, "padding": 1, "dilation": (1, 2)}):
        yield _called(functional.unfold, "x", **options)
    for name in ("zeros_like", "ones_like"):
        yield f"{name}", lambda d, n=name: getattr(torch, n)(d.i, dtype=torch.float32) + d.p[0, 0, :5]
    yield "full_like", lambda d: torch.full_like(d.i, 2.5, dtype=torch.float32) + d.p[0, 0, :5]
    yield "new_full", lambda d: d.i.new_full((3, 5), 7) + d.i
    yield "arange", lambda d: torch.arange(1, 11, 2) * d.i
    yield "linspace", lambda d: torch.linspace(-1, 2, 10) * d.p
    yield "eye", lambda d: torch.eye(4, 6) * d.ties


def _resampling() -> Iterator[tuple[str, Form]]:
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
        corners = [{"align_corners": True}, {"align_corners": False}] if mode in ("bilinear", "bicubic") else [{}]
        for each in corners:
            for size in ({"size": (13, 6)}, {"scale_factor": 2}, {"scale_factor": (1.3, 0.6)},
                         {"scale_factor": (1.3, 0.6), "recompute_scale_factor": True}):  # fmt: skip
                yield _called(functional.interpolate, "x", mode=mode, **each, **size)
    for mode in ("nearest", "linear", "nearest-exact"):
        yield _called(functional.interpolate, "line", mode=mode, size=17)
        yield _called(functional.interpolate, "line", mode=mode, scale_factor=1.7)
    yield _called(functional.interpolate, "line", mode="linear", size=17, align_corners=True)
    for mode in ("nearest", "trilinear", "nearest-exact"):
        yield _called(functional.interpolate, "space", mode=mode, size=(7, 4, 9))
        yield _called(functional.interpolate, "space", mode=mode, scale_factor=1.6)
    yield _called(functional.interpolate, "space", mode="trilinear", size=(7, 4, 9), align_corners=True)
    for mode, padding, corners in itertools.product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)
    ):
        yield (
            f"grid_sample {mode} {padding} {corners}",
            lambda d, m=mode, p=padding, c=corners: functional.grid_sample(
                d.x, torch.tanh(d.y[:, :2].permute(0, 2, 3, 1)) * 1.3, mode=m, padding_mode=p, align_corners=c
            ),
        )
    for mode in ("bilinear", "nearest"):
        yield f"grid_sample of space, {mode}", lambda d, m=mode: functional.grid_sample(
            d.space, torch.tanh(d.space[:, :1, ..., :3].permute(0, 2, 3, 1, 4).flatten(3)).unsqueeze(3), mode=m,
            align_corners=False,
        )  # fmt: skip
    for corners in (False, True):
        yield (
            f"affine_grid {corners}",
            lambda d, c=corners: functional.affine_grid(d.p.view(-1)[:12].view(2, 2, 3), [2, 4, 5, 6], align_corners=c),
        )


def _layers() -> Iterator[tuple[str, Form]]:
    ones = torch.linspace(0.5, 1.5, 4)
    yield _called(functional.layer_norm, "x", (10,))
    yield _called(functional.layer_norm, "x", (9, 10), eps=0.3)
    yield _called(functional.layer_norm, "x", (10,), torch.linspace(0, 1, 10), torch.linspace(1, 0, 10))
    yield _called(functional.rms_norm, "x", (10,), eps=0.3)
    yield _called(functional.rms_norm, "x", (9, 10), torch.linspace(0, 1, 90).view(9, 10))
    for groups in (1, 2, 4):
        yield _called(functional.group_norm, "x", groups, ones, -ones, eps=0.2)
        yield _called(functional.group_norm, "x", groups)
    yield _called(functional.instance_norm, "x", eps=0.2)
    yield _called(functional.instance_norm, "x", weight=ones, bias=-ones)
    yield _called(functional.instance_norm, "x", ones, ones * 2, use_input_stats=False)
    yield _called(functional.batch_norm, "x", ones, ones * 2, eps=0.2)
    yield _called(functional.batch_norm, "x", ones, ones * 2, ones, -ones)
    yield _called(functional.batch_norm, "x", None, None, training=True, eps=0.1)
    yield _called(functional.local_response_norm, "x", 3, alpha=0.1, beta=0.6, k=1.5)
    yield _called(functional.local_response_norm, "line", 2, alpha=0.1)
    yield _called(functional.cosine_similarity, "x", torch.ones(9, 10), dim=-1, eps=0.1)
    yield _called(functional.pairwise_distance, "x", torch.ones(9, 10), p=1.0, keepdim=True)
    for beta, alpha in ((1, 1), (0.5, 1), (1, 0.5), (0, 2), (2, -1)):
        yield (
            f"addmm {beta} {alpha}",
            lambda d, b=beta, a=alpha: torch.addmm(d.ties[:, :4], d.ties, d.ties.T, beta=b, alpha=a),
        )
        yield (
            f"baddbmm {beta} {alpha}",
            lambda d, b=beta, a=alpha: torch.baddbmm(
                d.x[0], d.x[0], d.y[1, :, 0:1].expand(-1, 10, -1), beta=b, alpha=a
            ),
        )
        yield (
            f"addmv {beta} {alpha}",
            lambda d, b=beta, a=alpha: torch.addmv(d.ties[:, 0], d.ties, d.ties[0], beta=b, alpha=a),
        )
        yield (
            f"addr {beta} {alpha}",
            lambda d, b=beta, a=alpha: torch.addr(d.ties, d.ties[:, 0], d.ties[0], beta=b, alpha=a),
        )
        yield (
            f"addbmm {beta} {alpha}",
            lambda d, b=beta, a=alpha: torch.addbmm(d.x[0, 0, :, :9], d.x[0], d.y[0].mT, beta=b, alpha=a),
        )
    yield "einsum", lambda d: torch.einsum("bchw,bcxw->bhx", d.x, d.y)
    yield "einsum of a diagonal", lambda d: torch.einsum("ii->i", d.ties[:, :4])
    yield "tensordot", lambda d: torch.tensordot(d.x, d.y, dims=([1, 3], [1, 3]))
    yield "outer", lambda d: torch.outer(d.ties[:, 0], d.ties[0])
    yield "kron", lambda d: torch.kron(d.ties, d.i.float())
    yield "cross", lambda d: torch.linalg.cross(d.x[:, :3], d.y[:, :3], dim=1)
    yield "cdist", lambda d: torch.cdist(d.x, d.y, p=1.5)
    yield "bilinear", lambda d: functional.bilinear(d.line, d.line, torch.linspace(-1, 1, 242).view(2, 11, 11))
    for options in ({}, {"is_causal": True}, {"scale": 0.3}):
        yield f"attention {options}", lambda d, o=options: functional.scaled_dot_product_attention(d.x, d.y, d.x, **o)
    yield (
        "attention with a mask",
        lambda d: functional.scaled_dot_product_attention(d.x, d.y, d.x, d.x[:, :1, :, :9] > 0),
    )
    yield "attention with a bias", lambda d: functional.scaled_dot_product_attention(d.x, d.y, d.x, d.y[:, :1, :, :9])
    yield (
        "attention in groups",
        lambda d: functional.scaled_dot_product_attention(d.x, d.y[:, :2], d.x[:, :2], enable_gqa=True),
    )


FORMS: dict[str, Form] = dict(
    itertools.chain(_pools(), _convolutions(), _reductions(), _element_wise(), _moving(), _resampling(), _layers())
)
