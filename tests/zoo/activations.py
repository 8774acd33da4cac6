"""Small networks, one for each usual activation, between a convolution and a linear layer."""

from __future__ import annotations

import functools

import torch
from torch import nn

from tests.zoo.catalogue import Example, Make


def _around(activation: nn.Module, channels: int = 16) -> Example:
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), activation, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(channels * 16, 10)
    )
    return layers, (torch.randn(1, 3, 16, 16),)


_ACTIVATIONS: dict[str, tuple[type[nn.Module], dict[str, object]]] = {
    "relu6": (nn.ReLU6, {}),
    "leaky_relu": (nn.LeakyReLU, {"negative_slope": 0.2}),
    "prelu": (nn.PReLU, {"num_parameters": 16}),
    "elu": (nn.ELU, {}),
    "selu": (nn.SELU, {}),
    "celu": (nn.CELU, {"alpha": 0.7}),
    "gelu": (nn.GELU, {}),
    "gelu_tanh": (nn.GELU, {"approximate": "tanh"}),
    "silu": (nn.SiLU, {}),
    "mish": (nn.Mish, {}),
    "hardswish": (nn.Hardswish, {}),
    "hardsigmoid": (nn.Hardsigmoid, {}),
    "hardtanh": (nn.Hardtanh, {}),
    "softplus": (nn.Softplus, {"beta": 2}),
    "softsign": (nn.Softsign, {}),
    "softmax_channels": (nn.Softmax2d, {}),
    "log_softmax": (nn.LogSoftmax, {"dim": 1}),
    "log_sigmoid": (nn.LogSigmoid, {}),
    "tanhshrink": (nn.Tanhshrink, {}),
    "hardshrink": (nn.Hardshrink, {}),
    "threshold": (nn.Threshold, {"threshold": 0.1, "value": -1.0}),
}


def _of(name: str) -> Example:
    kind, options = _ACTIVATIONS[name]
    return _around(kind(**options))


def glu() -> Example:
    return _around(nn.GLU(dim=1), channels=8)


NETWORKS: dict[str, Make] = {**{name: functools.partial(_of, name) for name in _ACTIVATIONS}, "glu": glu}
