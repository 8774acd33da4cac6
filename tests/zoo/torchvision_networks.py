"""torchvision's classification, segmentation and video families, with random weights."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.catalogue import Example, Make, use_installed


def _torchvision() -> Any:
    use_installed()
    import torchvision

    return torchvision.models


class _Main(nn.Module):
    """A network's outputs without those that only training uses."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        output: Tensor = self.network(image)["out"]
        return output


def _classifier(name: str, pixels: int = 128, **options: Any) -> Example:
    build = getattr(_torchvision(), name)
    return build(weights=None, **options), (torch.randn(1, 3, pixels, pixels),)


def _segmenter(name: str, pixels: int = 96, **options: Any) -> Example:
    build = getattr(_torchvision().segmentation, name)
    return _Main(build(weights=None, weights_backbone=None, **options)), (torch.randn(1, 3, pixels, pixels),)


def _video(name: str, frames: int, pixels: int) -> Example:
    return getattr(_torchvision().video, name)(weights=None), (torch.randn(1, 3, frames, pixels, pixels),)


def _vision_transformer() -> Example:
    build = _torchvision().VisionTransformer
    sizes = {"image_size": 224, "patch_size": 16, "num_layers": 4, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768}
    return build(**sizes), (torch.randn(1, 3, 224, 224),)


_CLASSIFIERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("squeezenet1_1", "resnet18", "resnet50", "resnext50_32x4d", "densenet121", "vgg11_bn")},
    **{name: {} for name in ("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5")},
    **{name: {} for name in ("shufflenet_v2_x0_5", "regnet_x_400mf", "regnet_y_400mf")},
    **{name: {} for name in ("efficientnet_b0", "efficientnet_v2_s", "convnext_tiny", "swin_t", "swin_v2_t")},
    "alexnet": {},
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False, "pixels": 139},
    "maxvit_t": {"pixels": 224},
}
_SEGMENTERS = ("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
_VIDEO: dict[str, tuple[int, int]] = {
    "r3d_18": (8, 56),
    "mc3_18": (8, 56),
    "r2plus1d_18": (8, 56),
    "s3d": (16, 224),
    "mvit_v1_b": (16, 224),  # made for clips of one size
    "mvit_v2_s": (16, 224),
    "swin3d_t": (8, 64),
}

NETWORKS: dict[str, Make] = {
    **{name: functools.partial(_classifier, name, **options) for name, options in _CLASSIFIERS.items()},
    "vit_of_4_layers": _vision_transformer,
    **{name: functools.partial(_segmenter, name) for name in _SEGMENTERS},
    **{name: functools.partial(_video, name, *sizes) for name, sizes in _VIDEO.items()},
}
