"""Small quantised torch modules, with inputs, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of the next name
from torch import Tensor, nn

_BYTES = torch.ops.quantized_decomposed
_SEED = 5

Example = tuple[nn.Module, tuple[Tensor, ...]]


def rounded(x: Tensor, scale: float, zero: int) -> Tensor:
    """``x``, quantised to unsigned bytes and taken back."""
    data = _BYTES.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
    result: Tensor = _BYTES.dequantize_per_tensor(data, scale, zero, 0, 255, torch.uint8)
    return result


class QuantisedLayer(nn.Module):
    """A layer without bias on rounded data, with weights of int8, whose result is rounded."""

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().flatten(1).abs().amax(1) / 127
        scale = scale.view(-1, *[1] * (layer.weight.ndim - 1))
        layer.weight = nn.Parameter(torch.round(layer.weight.detach() / scale) * scale)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return rounded(self.layer(rounded(x, 0.02, 110)), 0.05, 120)


class QuantisedAttention(nn.Module):
    """The product of two values that are computed."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        product = rounded(left, 0.02, 110) @ rounded(right, 0.02, 128).transpose(-1, -2)
        return rounded(product, 0.2, 100)


def _made(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[], Example]:
    def example() -> Example:
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            return make().eval(), tuple(torch.randn(shape) for shape in shapes)

    return example


QUANTISED: dict[str, Callable[[], Example]] = {
    "linear": _made(lambda: QuantisedLayer(nn.Linear(64, 48, bias=False)), (32, 64)),
    "linear_of_odd_extents": _made(lambda: QuantisedLayer(nn.Linear(30, 20, bias=False)), (17, 30)),
    "convolution": _made(lambda: QuantisedLayer(nn.Conv2d(16, 32, 3, padding=1, bias=False)), (1, 16, 8, 8)),
    "attention": _made(QuantisedAttention, (2, 16, 32), (2, 32, 32)),
}
