"""Small networks of every usual kind of convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.catalogue import Example, Make


def _on(shape: tuple[int, ...], *layers: nn.Module) -> Example:
    return nn.Sequential(*layers), (torch.randn(shape),)


def _bn_relu(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU()


def depthwise_separable() -> Example:
    return _on(
        (1, 16, 20, 20),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        *_bn_relu(16),
        nn.Conv2d(16, 32, 1, bias=False),
        *_bn_relu(32),
    )


def depthwise_multiplier() -> Example:
    return _on((1, 8, 14, 14), nn.Conv2d(8, 24, 5, stride=2, padding=2, groups=8), *_bn_relu(24))


def dilated() -> Example:
    return _on(
        (1, 8, 20, 20),
        nn.Conv2d(8, 16, 3, padding=2, dilation=2),
        *_bn_relu(16),
        nn.Conv2d(16, 16, 3, padding=(4, 2), dilation=(4, 2)),
    )


def grouped() -> Example:
    return _on(
        (2, 16, 14, 14),
        nn.Conv2d(16, 32, 3, padding=1, groups=4),
        *_bn_relu(32),
        nn.Conv2d(32, 16, 1, groups=2),
    )


def asymmetric() -> Example:
    return _on(
        (1, 3, 17, 23),
        nn.Conv2d(3, 8, (1, 7), padding=(0, 3)),
        nn.ReLU(),
        nn.Conv2d(8, 8, (5, 1), stride=(2, 1)),
        nn.ReLU(),
        nn.Conv2d(8, 8, 4, padding="same"),
    )


def conv1d() -> Example:
    return _on(
        (2, 8, 50),
        nn.Conv1d(8, 16, 5, stride=2, padding=2),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 16, 3, dilation=3),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 16, 3, groups=16),
    )


class _Causal(nn.Module):
    """A WaveNet-like stack: gated causal convolutions with growing dilation, residuals and skips."""

    def __init__(self, channels: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 2, dilation=2**at) for at in range(depth))
        self.mixes = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(depth))

    def forward(self, data: Tensor) -> Tensor:
        skips = torch.zeros_like(data)
        for at, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
            value, opened = gate(nn.functional.pad(data, (2**at, 0))).chunk(2, dim=1)
            mixed = mix(torch.tanh(value) * torch.sigmoid(opened))
            data, skips = data + mixed, skips + mixed
        return skips


def causal_stack() -> Example:
    return _Causal(), (torch.randn(1, 8, 40),)


def conv3d() -> Example:
    return _on(
        (1, 3, 6, 12, 12),
        nn.Conv3d(3, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)),
        nn.AdaptiveAvgPool3d(1),
    )


def transposed() -> Example:
    """A DCGAN generator, narrow."""
    return _on(
        (1, 20, 1, 1),
        nn.ConvTranspose2d(20, 32, 4, bias=False),
        *_bn_relu(32),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        *_bn_relu(16),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def transposed_uneven() -> Example:
    return _on(
        (1, 8, 9, 7),
        nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, (2, 3), stride=(2, 1), dilation=(1, 2)),
    )


def transposed_grouped() -> Example:
    return _on((1, 8, 9, 9), nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1, groups=4), *_bn_relu(12))


def transposed1d() -> Example:
    return _on((1, 8, 16), nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1), nn.ReLU(), nn.Conv1d(6, 4, 3))


def transposed3d() -> Example:
    return _on((1, 4, 3, 5, 5), nn.ConvTranspose3d(4, 6, 2, stride=2), nn.ReLU(), nn.Conv3d(6, 2, 1))


class _SqueezeExcitation(nn.Module):
    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, data: Tensor) -> Tensor:
        data = torch.relu(self.conv(data))
        scale = self.up(torch.relu(self.down(data.mean((2, 3), keepdim=True))))
        return data * nn.functional.hardsigmoid(scale)


def squeeze_excitation() -> Example:
    return _SqueezeExcitation(), (torch.randn(1, 16, 14, 14),)


class _Shuffled(nn.Module):
    """ShuffleNet's unit: channels split, one half convolved, shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(8, 8, 1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 1),
        )

    def forward(self, data: Tensor) -> Tensor:
        left, right = data.chunk(2, dim=1)
        both = torch.cat([left, self.branch(right)], dim=1)
        batch, channels, height, width = both.shape
        return both.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


def channel_shuffle() -> Example:
    return _Shuffled(), (torch.randn(1, 16, 10, 10),)


class _Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(12, 8, 1)
        self.three = nn.Sequential(nn.Conv2d(12, 6, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(12, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 5, padding=2))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(12, 8, 1))

    def forward(self, data: Tensor) -> Tensor:
        return torch.relu(torch.cat([self.one(data), self.three(data), self.five(data), self.pooled(data)], 1))


def inception_block() -> Example:
    return _Inception(), (torch.randn(1, 12, 14, 14),)


class _Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + 4 * at), nn.ReLU(), nn.Conv2d(8 + 4 * at, 4, 3, padding=1))
            for at in range(3)
        )

    def forward(self, data: Tensor) -> Tensor:
        for layer in self.layers:
            data = torch.cat([data, layer(data)], 1)
        return data


def dense_block() -> Example:
    return _Dense(), (torch.randn(1, 8, 12, 12),)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *_bn_relu(8))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), *_bn_relu(16))
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), *_bn_relu(32))
        self.up2, self.join2 = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 16, 3, padding=1)
        self.up1, self.join1 = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, data: Tensor) -> Tensor:
        first = self.down1(data)
        second = self.down2(first)
        up = torch.relu(self.join2(torch.cat([self.up2(self.bottom(second)), second], 1)))
        up = torch.relu(self.join1(torch.cat([self.up1(up), first], 1)))
        return self.head(up)


def unet() -> Example:
    return _UNet(), (torch.randn(1, 3, 24, 24),)


class _Residual(nn.Module):
    """A bottleneck with weight normalisation, before activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(16)
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 16, 3, padding=1))

    def forward(self, data: Tensor) -> Tensor:
        return data + self.conv(torch.relu(self.norm(data)))


def weight_norm() -> Example:
    return _Residual(), (torch.randn(1, 16, 10, 10),)


NETWORKS: dict[str, Make] = {
    make.__name__: make
    for make in (
        *(depthwise_separable, depthwise_multiplier, dilated, grouped, asymmetric, conv1d, causal_stack, conv3d),
        *(transposed, transposed_uneven, transposed_grouped, transposed1d, transposed3d, squeeze_excitation),
        *(channel_shuffle, inception_block, dense_block, unet, weight_norm),
    )
}
