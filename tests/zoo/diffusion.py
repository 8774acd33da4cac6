"""Blocks of a diffusion network: residual convolutions that know the time, attention to a text, down and up again."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo.catalogue import Example, Make

_TEXT = 24


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first_norm, self.last_norm = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.first, self.last = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time, self.beside = nn.Linear(time, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, data: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(functional.silu(self.first_norm(data)))
        hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
        return self.beside(data) + self.last(functional.silu(self.last_norm(hidden)))


class _Attention(nn.Module):
    def __init__(self, width: int, context: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.query, self.out = heads, nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.key, self.value = (nn.Linear(context, width, bias=False) for _ in range(2))

    def forward(self, data: Tensor, context: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query(data), self.key(context), self.value(context))
        )
        return self.out(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class _Transformer(nn.Module):
    """Attention of the pixels to each other and to the text, and a gated layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.norms = nn.GroupNorm(4, channels), nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.enter, self.leave = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.own, self.text = _Attention(channels, channels), _Attention(channels, _TEXT)
        self.gated, self.narrow = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        data = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        data = data + self.own(self.norms[0](data), self.norms[0](data))
        data = data + self.text(self.norms[1](data), text)
        kept, gate = self.gated(self.norms[2](data)).chunk(2, -1)
        data = data + self.narrow(kept * functional.gelu(gate))
        return image + self.leave(data.transpose(1, 2).reshape(image.shape))


class _UNet(nn.Module):
    """A block on the way down, one in the middle and one on the way up, which takes what the first one kept."""

    def __init__(self, channels: int = 16, time: int = 32) -> None:
        super().__init__()
        self.width = channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.leave = nn.Conv2d(4, channels, 3, padding=1), nn.Conv2d(channels, 4, 3, padding=1)
        self.down, self.downwards = _Residual(channels, channels, time), nn.Conv2d(channels, channels, 3, 2, 1)
        self.middle, self.attention = _Residual(channels, 2 * channels, time), _Transformer(2 * channels)
        self.upwards = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.up = _Residual(2 * channels, channels, time)

    def forward(self, latent: Tensor, step: Tensor, text: Tensor) -> Tensor:
        half = self.width // 2
        angles = step[:, None].float() * torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        kept = self.down(self.enter(latent), time)
        data = self.attention(self.middle(self.downwards(kept), time), text)
        data = self.upwards(functional.interpolate(data, scale_factor=2.0, mode="nearest"))
        return self.leave(self.up(torch.cat([data, kept], 1), time))


def _unet() -> Example:
    return _UNet(), (torch.randn(1, 4, 16, 16), torch.tensor([407]), torch.randn(1, 9, _TEXT))


NETWORKS: dict[str, Make] = {"diffusion_unet": _unet}
