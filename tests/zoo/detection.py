"""Networks that find objects, as people export them: up to the suppression of boxes, whose number depends on data.

torchvision's SSDlite and RetinaNet, heads of Mask R-CNN, a head of the YOLO kind, and transformers' DETR family.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo.catalogue import Example, Make, use_installed
from tests.zoo.transformers_networks import Arranged, built


class _OfTorchvision(nn.Module):
    """A detector of torchvision without its resizing of images and without what comes after the boxes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def levels_and_anchors(self, image: Tensor) -> tuple[list[Tensor], Tensor]:
        from torchvision.models.detection.image_list import ImageList

        levels = list(self.network.backbone(image).values())
        images = ImageList(image, [tuple(image.shape[-2:])] * len(image))
        return levels, self.network.anchor_generator(images, levels)[0]


class _SsdLite(_OfTorchvision):
    """All boxes in the image's coordinates, and the scores of their classes."""

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        from torchvision.ops import clip_boxes_to_image

        levels, anchors = self.levels_and_anchors(image)
        outputs = self.network.head(levels)
        boxes = self.network.box_coder.decode_single(outputs["bbox_regression"][0], anchors)
        return clip_boxes_to_image(boxes, image.shape[-2:]), functional.softmax(outputs["cls_logits"], -1)


class _RetinaNet(_OfTorchvision):
    """The boxes of the highest scores of every level, as torchvision chooses them before it suppresses."""

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        from torchvision.ops import clip_boxes_to_image

        levels, anchors = self.levels_and_anchors(image)
        outputs = self.network.head(levels)
        counts = [
            level.shape[-2] * level.shape[-1] * len(outputs["cls_logits"][0]) // self._places(levels)
            for level in levels
        ]
        boxes, scores, labels = [], [], []
        for logits, offsets, corners in zip(
            *(each.split(counts) for each in (outputs["cls_logits"][0], outputs["bbox_regression"][0], anchors)),
            strict=True,
        ):
            values, places = logits.sigmoid().flatten().topk(min(50, logits.numel()))
            rows = torch.div(places, logits.shape[-1], rounding_mode="floor")
            decoded = self.network.box_coder.decode_single(offsets[rows], corners[rows])
            boxes.append(clip_boxes_to_image(decoded, image.shape[-2:]))
            scores.append(values)
            labels.append(places % logits.shape[-1])
        return torch.cat(boxes), torch.cat(scores), torch.cat(labels)

    def _places(self, levels: Sequence[Tensor]) -> int:
        return sum(level.shape[-2] * level.shape[-1] for level in levels)


def _torchvision(name: str, wrap: Callable[[nn.Module], nn.Module], pixels: int) -> Example:
    use_installed()
    from torchvision.models import detection

    network = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=11)
    for layer in network.head.modules():
        if isinstance(layer, nn.Conv2d):  # their weights begin near zero: every score would be the same
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    return wrap(network), (torch.randn(1, 3, pixels, pixels),)


class _MaskHeads(nn.Module):
    """Mask R-CNN's heads on given boxes of one image: every box is cut out of the level of the pyramid that fits its
    size, which is done for all levels where the number of boxes must be known."""

    def __init__(self, ratio: int) -> None:
        super().__init__()
        use_installed()
        from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
        from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

        self.boxes = TwoMLPHead(16 * 49, 64)
        self.classes = FastRCNNPredictor(64, 5)
        self.masks = nn.Sequential(MaskRCNNHeads(16, (16, 16), 1), MaskRCNNPredictor(16, 16, 5))
        self.ratio = ratio

    def forward(self, near: Tensor, far: Tensor, boxes: Tensor) -> tuple[Tensor, ...]:
        scores, offsets = self.classes(self.boxes(self._cut(near, far, boxes, 7)))
        return functional.softmax(scores, -1), offsets, self.masks(self._cut(near, far, boxes, 14)).sigmoid()

    def _cut(self, near: Tensor, far: Tensor, boxes: Tensor, pixels: int) -> Tensor:
        size = (boxes[:, 2:] - boxes[:, :2]).prod(1).sqrt()
        rois = functional.pad(boxes, (1, 0))
        cut = (
            torch.ops.torchvision.roi_align(level, rois, scale, pixels, pixels, self.ratio, False)
            for level, scale in ((near, 1 / 4), (far, 1 / 8))
        )
        small, large = cut
        return torch.where((size < 40)[:, None, None, None], small, large)


def _mask_heads(ratio: int) -> Example:
    corners = torch.rand(6, 2) * 60
    boxes = torch.cat([corners, corners + 8 + torch.rand(6, 2) * 60], 1)
    return _MaskHeads(ratio), (torch.randn(1, 16, 32, 32), torch.randn(1, 16, 16, 16), boxes)


def _convolved(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class _Bottlenecks(nn.Module):
    """Half of the channels go through convolutions, and every step's result is kept."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.first, self.last = _convolved(channels, channels, 1), _convolved(3 * half, channels, 1)
        self.inner = nn.Sequential(_convolved(half, half), _convolved(half, half))

    def forward(self, data: Tensor) -> Tensor:
        kept, moved = self.first(data).chunk(2, 1)
        return self.last(torch.cat([kept, moved, moved + self.inner(moved)], 1))


class _DeformedConvolution(nn.Module):
    """A convolution that reads where another one tells it to, with a weight for every place (DCN version 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.mask = nn.Conv2d(8, 18, 3, padding=1), nn.Conv2d(8, 9, 3, padding=1)
        self.weight, self.bias = nn.Parameter(torch.randn(6, 8, 3, 3)), nn.Parameter(torch.randn(6))
        use_installed()

    def forward(self, data: Tensor) -> Tensor:
        places, shares = self.offset(data), self.mask(data).sigmoid()
        ones = (1, 1) * 3
        result: Tensor = torch.ops.torchvision.deform_conv2d(
            data, self.weight, places, shares, self.bias, *ones, 1, 1, True
        )
        return result


class _YoloLike(nn.Module):
    """A backbone, a pyramid with pools of several sizes, and at three scales distances to a box's four sides, each as
    the mean of a distribution. One tensor goes out, (batch, 4 + classes, places), as YOLO's exporters write it."""

    def __init__(self, channels: int = 16, classes: int = 7, bins: int = 8) -> None:
        super().__init__()
        self.bins = bins
        self.stem = nn.Sequential(_convolved(3, channels, 3, 2), _convolved(channels, channels, 3, 2))
        self.down = nn.ModuleList(
            nn.Sequential(_convolved(channels, channels, 3, 2), _Bottlenecks(channels)) for _ in range(3)
        )
        self.pooled = _convolved(4 * channels, channels, 1)
        self.up = nn.ModuleList(_convolved(2 * channels, channels, 1) for _ in range(2))
        self.sides = nn.ModuleList(nn.Conv2d(channels, 4 * bins, 1) for _ in range(3))
        self.classes = nn.ModuleList(nn.Conv2d(channels, classes, 1) for _ in range(3))

    def forward(self, image: Tensor) -> Tensor:
        data, levels = self.stem(image), []
        for step in self.down:
            data = step(data)
            levels.append(data)
        pools = [data]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        levels[2] = self.pooled(torch.cat(pools, 1))
        for at, join in ((1, self.up[0]), (0, self.up[1])):
            larger = functional.interpolate(levels[at + 1], scale_factor=2.0, mode="nearest")
            levels[at] = join(torch.cat([larger, levels[at]], 1))
        return torch.cat([self._decoded(at, level) for at, level in enumerate(levels)], 2)

    def _decoded(self, at: int, level: Tensor) -> Tensor:
        batch, _, rows, columns = level.shape
        stride = 8 * 2**at
        bins = self.sides[at](level).view(batch, 4, self.bins, rows * columns).softmax(2)
        sides = (bins * torch.arange(self.bins, dtype=bins.dtype)[None, None, :, None]).sum(2)
        y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
        centres = torch.stack([x, y]).view(1, 2, -1)
        low, high = sides.chunk(2, 1)
        begins, ends = centres - low, centres + high
        boxes = torch.cat([(begins + ends) / 2, ends - begins], 1) * stride
        return torch.cat([boxes, self.classes[at](level).view(batch, -1, rows * columns).sigmoid()], 1)


class _AnchoredYolo(nn.Module):
    """The head of older YOLO networks: offsets to anchors, in place in one tensor of five dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 3 * 9, 1)
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]]))

    def forward(self, level: Tensor) -> Tensor:
        batch, _, rows, columns = level.shape
        output = self.convolution(level).view(batch, 3, 9, rows, columns).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        grid = torch.stack((x, y), 2).view(1, 1, rows, columns, 2).to(output.dtype)
        output[..., 0:2] = (output[..., 0:2] * 2.0 - 0.5 + grid) * 8
        output[..., 2:4] = (output[..., 2:4] * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
        return output.view(batch, -1, 9)


def _yolo() -> Example:
    return _YoloLike(), (torch.randn(1, 3, 96, 128),)


def _anchored_yolo() -> Example:
    return _AnchoredYolo(), (torch.randn(1, 8, 10, 12),)


def _resnet() -> Any:
    use_installed()
    import transformers

    return transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1], out_features=["stage4"]
    )


_DETR = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_queries": 12,
    "num_labels": 6,
    "init_std": 0.2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}


def _detr(model: str, config: str, **options: Any) -> Example:
    """With a mask of the pixels that are no padding."""
    settings = {**_DETR, "use_timm_backbone": False, "backbone_config": _resnet(), **options}
    network = built(model, config, **settings)
    mask = torch.ones(1, 96, 128, dtype=torch.long)
    mask[:, :, 112:] = 0
    arranged = Arranged(network, ("pixel_values", "pixel_mask"), ("logits", "pred_boxes"))
    return arranged, (torch.randn(1, 3, 96, 128), mask)


NETWORKS: dict[str, Make] = {
    "ssdlite": functools.partial(_torchvision, "ssdlite320_mobilenet_v3_large", _SsdLite, 128),
    "retinanet": functools.partial(_torchvision, "retinanet_resnet50_fpn", _RetinaNet, 96),
    "mask_rcnn_heads": functools.partial(_mask_heads, 2),
    "mask_rcnn_heads_adaptive": functools.partial(_mask_heads, 0),
    "deformable_convolution": lambda: (_DeformedConvolution(), (torch.randn(1, 8, 12, 14),)),
    "yolo_like": _yolo,
    "yolo_anchors": _anchored_yolo,
    "detr": functools.partial(_detr, "DetrForObjectDetection", "DetrConfig"),
    "conditional_detr": functools.partial(_detr, "ConditionalDetrForObjectDetection", "ConditionalDetrConfig"),
}
