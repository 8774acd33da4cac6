"""Networks that others wrote: of torchvision and transformers, with random weights, one input, float32.

Each function returns ``(module, example inputs)``. They need ``pip install torchvision transformers``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.networks.torchvision_operators import load_or_define

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 20
_TOKENS = 128


def _vision(name: str) -> Example:
    load_or_define()
    import torchvision

    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = getattr(torchvision.models, name)(weights=None).eval()
        for layer in network.modules():
            # What folding them into the convolutions does not change would not show that it is right.
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None
                assert layer.running_var is not None
                layer.running_mean.normal_(0.0, 0.1)
                layer.running_var.uniform_(0.5, 1.5)
        return network, (torch.randn(1, 3, 224, 224),)


class _Encoder(nn.Module):
    """BERT without its pooling: token ids (1, tokens) to hidden states (1, tokens, 768)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(num_hidden_layers=layers, attn_implementation="eager")
        self.bert = BertModel(config, add_pooling_layer=False)
        self.vocabulary = config.vocab_size

    def forward(self, ids: Tensor) -> Tensor:
        every_token = torch.ones(1, 1, _TOKENS, _TOKENS, device=ids.device, dtype=self.bert.dtype)
        out: Tensor = self.bert(input_ids=ids, attention_mask=every_token)[0]
        return out


def _encoder(layers: int) -> Example:
    load_or_define()  # transformers imports torchvision where it is installed
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _Encoder(layers).eval()
        return network, (torch.randint(0, network.vocabulary, (1, _TOKENS)),)


def resnet18() -> Example:
    """torchvision's ResNet-18 on one 224x224 image."""
    return _vision("resnet18")


def resnet50() -> Example:
    """torchvision's ResNet-50 on one 224x224 image."""
    return _vision("resnet50")


def mobilenet_v2() -> Example:
    """torchvision's MobileNetV2 on one 224x224 image."""
    return _vision("mobilenet_v2")


def bert_two_layers() -> Example:
    """transformers' BERT-base with two of its twelve layers, 128 tokens."""
    return _encoder(2)


def bert_base() -> Example:
    """transformers' BERT-base, 128 tokens."""
    return _encoder(12)
