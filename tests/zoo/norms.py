"""Small networks of every usual norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.catalogue import Example, Make


def _convolved(norm: nn.Module) -> Example:
    return nn.Sequential(nn.Conv2d(3, 16, 3), norm, nn.ReLU(), nn.Conv2d(16, 4, 1)), (torch.randn(2, 3, 14, 14),)


def _projected(norm: nn.Module) -> Example:
    return nn.Sequential(nn.Linear(24, 32), norm, nn.GELU(), nn.Linear(32, 8)), (torch.randn(2, 10, 24),)


class _Scaled(nn.Module):
    """Llama's norm, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, data: Tensor) -> Tensor:
        return self.weight * data * torch.rsqrt(data.pow(2).mean(-1, keepdim=True) + 1e-6)


class _ChannelsFirst(nn.Module):
    """ConvNeXt's norm of images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, data: Tensor) -> Tensor:
        return self.norm(data.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Unit(nn.Module):
    def forward(self, data: Tensor) -> Tensor:
        return nn.functional.normalize(data, dim=1)


class _Standardised(nn.Module):
    """Deviations and variances, biased and not."""

    def forward(self, data: Tensor) -> Tensor:
        centred = data - data.mean((2, 3), keepdim=True)
        return centred / (data.std((2, 3), keepdim=True) + 0.1) + data.var(1, keepdim=True, unbiased=False)


NETWORKS: dict[str, Make] = {
    "batch_norm": lambda: _convolved(nn.BatchNorm2d(16, eps=1e-3)),
    "batch_norm_without_weights": lambda: _convolved(nn.BatchNorm2d(16, affine=False)),
    "group_norm": lambda: _convolved(nn.GroupNorm(4, 16)),
    "instance_norm": lambda: _convolved(nn.InstanceNorm2d(16, affine=True)),
    "instance_norm_tracked": lambda: _convolved(nn.InstanceNorm2d(16, affine=True, track_running_stats=True)),
    "local_response_norm": lambda: _convolved(nn.LocalResponseNorm(5)),
    "layer_norm_image": lambda: _convolved(nn.LayerNorm((16, 12, 12))),
    "layer_norm_channels": lambda: _convolved(_ChannelsFirst(16)),
    "unit_norm": lambda: _convolved(_Unit()),
    "standardised": lambda: _convolved(_Standardised()),
    "layer_norm": lambda: _projected(nn.LayerNorm(32)),
    "rms_norm": lambda: _projected(nn.RMSNorm(32, eps=1e-6)),
    "rms_norm_written_out": lambda: _projected(_Scaled(32)),
    "batch_norm_of_rows": lambda: (
        nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)),
        (torch.randn(6, 24),),
    ),
}
