"""Networks of the papers that no package provides: DCGAN's generator and an LSTM language model. Random weights, batch
1, float32."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 20
_TOKENS = 128


def randomise_norms(network: nn.Module) -> None:
    """Replace the initial statistics of every batch norm by random ones, in place. With the initial statistics, folding
    a batch norm into a convolution hardly changes the weights, so a wrong fold would not be noticed."""
    for layer in network.modules():
        mean, variance = (getattr(layer, name, None) for name in ("running_mean", "running_var"))
        if isinstance(mean, Tensor) and isinstance(variance, Tensor):
            mean.normal_(0.0, 0.1)
            variance.uniform_(0.5, 1.5)


class _Generator(nn.Module):
    """DCGAN's generator (Radford et al. 2016, figure 1): numbers (1, 100) to an image (1, 3, 64, 64).

    Kernels are 4x4 as in most later implementations, not 5x5: with a stride of 2, all output pixels then have the same
    number of taps.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (1024, 512, 256, 128)
        self.project = nn.Linear(100, widths[0] * 16, bias=False)
        layers: list[nn.Module] = [nn.BatchNorm2d(widths[0]), nn.ReLU()]
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1), nn.Tanh())

    def forward(self, numbers: Tensor) -> Tensor:
        image: Tensor = self.layers(self.project(numbers).view(-1, 1024, 4, 4))
        return image


class _LanguageModel(nn.Module):
    """The LSTM language model that AutoTVM tunes, of the medium size of Zaremba et al. 2014: token ids (1, tokens) to
    scores (1, tokens, 10000), through two layers of 650 units."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary, units = 10_000, 650
        self.embedding = nn.Embedding(self.vocabulary, units)
        self.layers = nn.LSTM(units, units, 2, batch_first=True)
        self.head = nn.Linear(units, self.vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.layers(self.embedding(ids))
        scores: Tensor = self.head(hidden)
        return scores


def dcgan() -> Example:
    """DCGAN's generator on 100 numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _Generator().eval()
        randomise_norms(network)
        return network, (torch.rand(1, 100) * 2 - 1,)


def lstm() -> Example:
    """An LSTM language model on 128 tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _LanguageModel().eval()
        return network, (torch.randint(0, network.vocabulary, (1, _TOKENS)),)
