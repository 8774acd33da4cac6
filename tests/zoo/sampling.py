"""Small networks of pooling, padding, interpolation, and whatever else moves or resamples pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.zoo.catalogue import Example, Make


class _Between(nn.Module):
    """A step between two convolutions that both see 8 channels."""

    def __init__(self, step: Callable[[Tensor], Tensor], before: int = 8, after: int = 8) -> None:
        super().__init__()
        self.before, self.step, self.after = nn.Conv2d(3, before, 3), step, nn.Conv2d(after, 4, 1)

    def forward(self, data: Tensor) -> Tensor:
        return self.after(torch.relu(self.step(self.before(data))))


def _step(step: Callable[[Tensor], Tensor], before: int = 8, after: int = 8) -> Example:
    return _Between(step, before, after), (torch.randn(1, 3, 15, 17),)


def _resized(**options: object) -> Example:
    return _step(functools.partial(nn.functional.interpolate, **options))


def _padded(mode: str) -> Example:
    return _step(functools.partial(nn.functional.pad, pad=(2, 1, 3, 2), mode=mode))


def _sampled(data: Tensor) -> Tensor:
    angle = torch.tensor([[[0.8, -0.3, 0.1], [0.2, 0.9, -0.1]]])
    grid = nn.functional.affine_grid(angle, [1, 8, 12, 12], align_corners=False)
    return nn.functional.grid_sample(data, grid, align_corners=False)


def _patches(data: Tensor) -> Tensor:
    return nn.functional.unfold(data, 3, stride=2).view(1, 8, 9, -1).mean(2, keepdim=True)


def _folded(data: Tensor) -> Tensor:
    return nn.functional.fold(nn.functional.unfold(data, 2, stride=1), data.shape[-2:], 2, stride=1)


def _rolled(data: Tensor) -> Tensor:
    return torch.flip(torch.roll(data, (2, -3), (2, 3)), (3,))


def _global_pools(data: Tensor) -> Tensor:
    average, largest = nn.functional.adaptive_avg_pool2d(data, 1), nn.functional.adaptive_max_pool2d(data, 1)
    return torch.cat([average, largest], 1)


NETWORKS: dict[str, Make] = {
    "max_pool_ceil": lambda: _step(nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
    "max_pool_dilated": lambda: _step(nn.MaxPool2d(3, 1, dilation=2)),
    "avg_pool": lambda: _step(nn.AvgPool2d(3, 2, 1)),
    "avg_pool_inside": lambda: _step(nn.AvgPool2d(3, 2, 1, count_include_pad=False, ceil_mode=True)),
    "adaptive_avg_pool": lambda: _step(nn.AdaptiveAvgPool2d((5, 4))),
    "adaptive_max_pool": lambda: _step(nn.AdaptiveMaxPool2d((5, 4))),
    "lp_pool": lambda: _step(nn.LPPool2d(2, 3, stride=2)),
    "global_pools": lambda: _step(_global_pools, after=16),
    "pad_reflect": lambda: _padded("reflect"),
    "pad_replicate": lambda: _padded("replicate"),
    "pad_circular": lambda: _padded("circular"),
    "pad_constant": lambda: _padded("constant"),
    "pixel_shuffle": lambda: _step(nn.PixelShuffle(2), after=2),
    "pixel_unshuffle": lambda: _step(lambda data: nn.functional.pixel_unshuffle(data[..., :12, :12], 2), after=32),
    "nearest": lambda: _resized(scale_factor=2),
    "nearest_to_size": lambda: _resized(size=(20, 31)),
    "nearest_by_factor": lambda: _resized(scale_factor=(1.3, 2.4)),
    "bilinear_by_factor": lambda: _resized(scale_factor=(1.3, 0.7), mode="bilinear"),
    "bilinear": lambda: _resized(scale_factor=2.0, mode="bilinear"),
    "bilinear_corners": lambda: _resized(size=(20, 31), mode="bilinear", align_corners=True),
    "bilinear_smaller": lambda: _resized(size=(7, 6), mode="bilinear"),
    "bicubic": lambda: _resized(size=(20, 31), mode="bicubic"),
    "grid_sample": lambda: _step(_sampled),
    "unfold": lambda: _step(_patches),
    "fold": lambda: _step(_folded),
    "roll_and_flip": lambda: _step(_rolled),
}
