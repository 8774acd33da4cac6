"""Networks of torchvision and transformers, with random weights, batch 1, float32.

Networks of the papers that no package provides are in :mod:`bench.networks.paper_networks`.

Each function returns ``(module, example inputs)``. They need ``pip install torchvision transformers``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from bench.networks.paper_networks import randomise_norms
from bench.networks.torchvision_operators import load_or_define

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 20
_TOKENS = 128


def _vision(name: str, pixels: int = 224, **options: Any) -> Example:
    load_or_define()
    import torchvision

    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = attrgetter(name)(torchvision.models)(weights=None, **options).eval()
        randomise_norms(network)
        return network, (torch.randn(1, 3, pixels, pixels),)


class _Encoder(nn.Module):
    """BERT without its pooling: token ids (1, tokens) to hidden states (1, tokens, width)."""

    def __init__(self, layers: int, **sizes: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(num_hidden_layers=layers, **sizes, attn_implementation="eager")
        self.bert = BertModel(config, add_pooling_layer=False)
        self.vocabulary = config.vocab_size

    def forward(self, ids: Tensor) -> Tensor:
        every_token = torch.ones(1, 1, _TOKENS, _TOKENS, device=ids.device, dtype=self.bert.dtype)
        out: Tensor = self.bert(input_ids=ids, attention_mask=every_token)[0]
        return out


def _encoder(layers: int, **sizes: int) -> Example:
    load_or_define()  # transformers imports torchvision if it is installed
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _Encoder(layers, **sizes).eval()
        return network, (torch.randint(0, network.vocabulary, (1, _TOKENS)),)


class _FirstOutput(nn.Module):
    """A network of transformers that returns only its first output."""

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


def _vit(**sizes: int) -> Example:
    """Return transformers' ViT without its pooling."""
    load_or_define()
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**sizes, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _FirstOutput(ViTModel(config, add_pooling_layer=False)).eval()
        return network, (torch.randn(1, 3, config.image_size, config.image_size),)


class _Segments(nn.Module):
    """A segmentation network of torchvision: an image (1, 3, height, width) to scores of classes for every pixel
    (1, 21, height, width)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.network(image)["out"]
        return scores


class _Detector(nn.Module):
    """A detector of transformers: an image (1, 3, height, width) to scores of classes and to boxes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        found = self.network(image)
        return found.logits, found.pred_boxes


def resnet18() -> Example:
    """torchvision's ResNet-18 on one 224x224 image."""
    return _vision("resnet18")


def resnet50() -> Example:
    """torchvision's ResNet-50 on one 224x224 image."""
    return _vision("resnet50")


def vgg16() -> Example:
    """torchvision's VGG-16 on one 224x224 image."""
    return _vision("vgg16")


def inception_v3() -> Example:
    """torchvision's Inception-v3, without its auxiliary classifier, on one 299x299 image."""
    return _vision("inception_v3", 299, aux_logits=False, init_weights=False)


def wide_resnet50() -> Example:
    """torchvision's WideResNet-50-2 on one 224x224 image."""
    return _vision("wide_resnet50_2")


def densenet121() -> Example:
    """torchvision's DenseNet-121 on one 224x224 image."""
    return _vision("densenet121")


def deeplab_v3() -> Example:
    """torchvision's DeepLabV3 with a ResNet-50 on one 224x224 image."""
    network, inputs = _vision("segmentation.deeplabv3_resnet50", weights_backbone=None)
    return _Segments(network), inputs


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


def gpt2() -> Example:
    """transformers' GPT-2, without its head, 128 tokens."""
    return _text("gpt2")


def vit_tiny() -> Example:
    """transformers' ViT of the tiny size (12 layers of 192 channels), without its pooling, on one 224x224 image."""
    return _vit(hidden_size=192, num_attention_heads=3, intermediate_size=768)


def vit_base() -> Example:
    """transformers' ViT of the base size, without its pooling, on one 256x256 image as in Pruner's table 3."""
    return _vit(image_size=256)


def detr() -> Example:
    """transformers' DETR with a ResNet-50 on one 256x256 image, as in Pruner's table 3."""
    load_or_define()
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(out_features=["stage4"])
    config = DetrConfig(use_timm_backbone=False, backbone_config=backbone, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _Detector(DetrForObjectDetection(config)).eval()
        randomise_norms(network)
        return network, (torch.randn(1, 3, 256, 256),)


def bert_tiny() -> Example:
    """transformers' BERT of the size that Pruner's table 4 calls tiny, 128 tokens."""
    return _encoder(6, hidden_size=512, num_attention_heads=8, intermediate_size=2048)


def bert_two_layers() -> Example:
    """transformers' BERT-base with two of its twelve layers, 128 tokens."""
    return _encoder(2)


def bert_base() -> Example:
    """transformers' BERT-base, 128 tokens."""
    return _encoder(12)
