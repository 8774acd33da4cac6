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


class _FirstOutput(nn.Module):
    """The first output of a network of transformers."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.network(value, return_dict=False)[0]
        return out


def _text(kind: str, **sizes: int) -> Example:
    """Return a network of transformers that turns token ids (1, tokens) into hidden states."""
    load_or_define()
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, attn_implementation="eager", use_cache=False, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _FirstOutput(AutoModel.from_config(config)).eval()
        return network, (torch.randint(0, config.vocab_size, (1, _TOKENS)),)


def resnet18() -> Example:
    """torchvision's ResNet-18 on one 224x224 image."""
    return _vision("resnet18")


def resnet50() -> Example:
    """torchvision's ResNet-50 on one 224x224 image."""
    return _vision("resnet50")


def mobilenet_v2() -> Example:
    """torchvision's MobileNetV2 on one 224x224 image."""
    return _vision("mobilenet_v2")


def squeezenet1_1() -> Example:
    """torchvision's SqueezeNet 1.1 on one 224x224 image."""
    return _vision("squeezenet1_1")


def efficientnet_b0() -> Example:
    """torchvision's EfficientNet-B0 on one 224x224 image."""
    return _vision("efficientnet_b0")


def convnext_tiny() -> Example:
    """torchvision's ConvNeXt-tiny on one 224x224 image."""
    return _vision("convnext_tiny")


def mobilenet_v3_small() -> Example:
    """torchvision's MobileNetV3-small on one 224x224 image."""
    return _vision("mobilenet_v3_small")


def shufflenet_v2() -> Example:
    """torchvision's ShuffleNetV2 (x1.0) on one 224x224 image."""
    return _vision("shufflenet_v2_x1_0")


def regnet_y_400mf() -> Example:
    """torchvision's RegNetY-400MF on one 224x224 image."""
    return _vision("regnet_y_400mf")


def distilbert_two_layers() -> Example:
    """transformers' DistilBERT with two of its six layers, 128 tokens."""
    return _text("distilbert", n_layers=2, dim=768, n_heads=12, hidden_dim=3072)


def gpt2_two_layers() -> Example:
    """transformers' GPT-2 with two of its twelve layers, without its head, 128 tokens."""
    return _text("gpt2", n_layer=2)


def vit_tiny() -> Example:
    """transformers' ViT of the tiny size (12 layers of 192 channels), without its pooling, on one 224x224 image."""
    load_or_define()
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _FirstOutput(ViTModel(config, add_pooling_layer=False)).eval()
        return network, (torch.randn(1, 3, 224, 224),)


def bert_two_layers() -> Example:
    """transformers' BERT-base with two of its twelve layers, 128 tokens."""
    return _encoder(2)


def bert_base() -> Example:
    """transformers' BERT-base, 128 tokens."""
    return _encoder(12)
