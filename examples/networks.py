"""Networks to try fleet-tune with: own definitions, weights from a fixed seed, batch 1, float32.

Each function returns ``(module, example_inputs)``, the form that ``fleet-tune tune`` takes as
``examples/networks.py:resnet18``. Batch-norm statistics are random, so that folding them into the convolutions changes
numbers, and the outputs have magnitudes of 0.1 to 2, so that absolute errors mean something.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 20


class _ConvNorm(nn.Module):
    """Convolution without bias, batch norm, activation."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: str = "relu"
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.act: nn.Module = {"relu": nn.ReLU(), "relu6": nn.ReLU6(), "none": nn.Identity()}[act]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.norm(self.conv(x)))
        return out


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet's basic block)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _ConvNorm(inputs, outputs, 3, stride)
        self.second = _ConvNorm(outputs, outputs, 3, act="none")
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = nn.Identity() if same else _ConvNorm(inputs, outputs, 1, stride, act="none")

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


class _ResNet(nn.Module):
    """Network of basic blocks, so many in each of the four stages."""

    def __init__(self, repeats: tuple[int, int, int, int], classes: int = 1000) -> None:
        super().__init__()
        self.stem = _ConvNorm(3, 64, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        width = 64
        for outputs, stride, count in zip((64, 128, 256, 512), (1, 2, 2, 2), repeats, strict=True):
            blocks.append(_ResidualBlock(width, outputs, stride))
            blocks += [_ResidualBlock(outputs, outputs, 1) for _ in range(count - 1)]
            width = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(x)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class _InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1 without activation (MobileNetV2)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = [_ConvNorm(inputs, hidden, 1, act="relu6")] if expand != 1 else []
        layers += [
            _ConvNorm(hidden, hidden, 3, stride, groups=hidden, act="relu6"),
            _ConvNorm(hidden, outputs, 1, act="none"),
        ]
        self.layers = nn.Sequential(*layers)
        self.add = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.add else y


def _in_eights(channels: float) -> int:
    """The nearest multiple of eight, or the next one where that is more than a tenth less (MobileNetV2)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


class _MobileNetV2(nn.Module):
    #: expansion, output channels, repeats, first stride
    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, multiplier: float = 1.0, classes: int = 1000) -> None:
        """``multiplier``: of the channels of all layers but the last."""
        super().__init__()
        width = _in_eights(32 * multiplier)
        layers: list[nn.Module] = [_ConvNorm(3, width, 3, 2, act="relu6")]
        for expand, outputs, repeats, stride in self.STAGES:
            scaled = _in_eights(outputs * multiplier)
            for index in range(repeats):
                layers.append(_InvertedResidual(width, scaled, stride if index == 0 else 1, expand))
                width = scaled
        layers.append(_ConvNorm(width, 1280, 1, act="relu6"))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x).mean((2, 3)))
        return out


class _EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each followed by residual and layer norm (BERT)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.depth = heads, hidden // heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.widen, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.final_norm = nn.LayerNorm(hidden)

    def _split(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.heads, self.depth).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        scores = torch.softmax(query @ key.transpose(-1, -2) / self.depth**0.5, dim=-1)
        mixed = (scores @ value).transpose(1, 2).reshape(x.shape)
        x = self.norm(x + self.output(mixed))
        out: Tensor = self.final_norm(x + self.narrow(nn.functional.gelu(self.widen(x))))
        return out


class _Bert(nn.Module):
    """Token and position embeddings, encoder layers, a pooled classification head."""

    def __init__(self, layers: int, hidden: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(tokens, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.Sequential(*(_EncoderLayer(hidden, heads) for _ in range(layers)))
        self.pool, self.head = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)

    def forward(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.layers(self.norm(self.words(ids) + self.positions(at)))
        out: Tensor = self.head(torch.tanh(self.pool(x[:, 0])))
        return out


class _DecoderLayer(nn.Module):
    """One token's attention to the tokens before it, and the dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.inner(self.first(x)).view(3, self.heads, 1, -1)
        keys, values = torch.cat([keys, parts[1]], 1), torch.cat([values, parts[2]], 1)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], keys, values)
        x = x + self.outer(mixed.reshape(1, -1))
        return x + self.down(nn.functional.gelu(self.up(self.second(x)))), parts[1], parts[2]


class _DecodeStep(nn.Module):
    """One token of a language model: its logits, and what the cache of keys and values gets."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(_DecoderLayer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, word: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, new_keys, new_values = self.words(word), [], []
        for layer, of_keys, of_values in zip(self.layers, keys, values, strict=True):
            x, key, value = layer(x, of_keys, of_values)
            new_keys.append(key)
            new_values.append(value)
        return self.head(self.norm(x)), torch.stack(new_keys), torch.stack(new_values)


class _Mlp(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class _SmallCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(_ConvNorm(3, 16, 3), _ConvNorm(16, 32, 3, 2), _ConvNorm(32, 32, 3))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(x).mean((2, 3)))
        return out


def _randomise_norms(module: nn.Module) -> None:
    """Gives every batch and layer norm its own scale, shift and statistics."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            nn.init.uniform_(layer.running_mean, -0.3, 0.3)
            nn.init.uniform_(layer.running_var, 0.2, 0.6)
        if isinstance(layer, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(layer.weight, 0.6, 1.2)
            nn.init.uniform_(layer.bias, -0.2, 0.2)


def _finish(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        _randomise_norms(module)
    return module.eval()


def resnet18() -> Example:
    """ResNet-18 on one 224x224 image; 1000 classes, 3.6 GFLOP."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _finish(_ResNet((2, 2, 2, 2))), (torch.randn(1, 3, 224, 224),)


def resnet34() -> Example:
    """ResNet-34 on one 224x224 image: the layers of ResNet-18, more often; 7.3 GFLOP."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _finish(_ResNet((3, 4, 6, 3))), (torch.randn(1, 3, 224, 224),)


def mobilenet_v2() -> Example:
    """MobileNetV2 on one 224x224 image: depthwise convolutions and ReLU6; 0.6 GFLOP."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _finish(_MobileNetV2()), (torch.randn(1, 3, 224, 224),)


def mobilenet_v2_narrow() -> Example:
    """MobileNetV2 with 0.75 of the channels: the same layers in other shapes; 0.4 GFLOP."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _finish(_MobileNetV2(0.75)), (torch.randn(1, 3, 224, 224),)


def bert_tiny() -> Example:
    """A BERT of 2 layers, hidden size 128, 2 heads, on 128 tokens (int64 ids); two classes."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        module = _Bert(layers=2, hidden=128, heads=2, tokens=128, vocabulary=8192)
        return _finish(module), (torch.randint(0, 8192, (1, 128)),)


def decode_step() -> Example:
    """A token of a language model of 4 layers, width 512, 8 heads, with 127 tokens in the cache: products of one row,
    whose time is that of reading 67 MB of weights."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        module = _DecodeStep(layers=4, width=512, heads=8, vocabulary=8192)
        return _finish(module), (torch.tensor([5]), torch.randn(4, 8, 127, 64), torch.randn(4, 8, 127, 64))


def mlp() -> Example:
    """Three dense layers, 64 to 128 to 128 to 16: tunes in seconds."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _finish(_Mlp(64, 128, 16)), (torch.randn(4, 64),)


def small_cnn() -> Example:
    """Three convolutions with batch norm on a 32x32 image: for tests."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        return _finish(_SmallCnn()), (torch.randn(1, 3, 32, 32),)
