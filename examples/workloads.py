"""Single kernels to collect datasets of measured schedules from: own definitions, fixed seed, batch 1, float32. Others
are in ``low_precision_workloads.py``.

``fleet-tune dataset collect examples/workloads.py:dataset --per-task 1000 --out DIR`` measures random schedules of
each. The modules are not networks: their branches are independent, one workload each, and they return all results.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 21


class ChannelsLast(nn.Module):
    """Convolution, bias and ReLU on an image that comes and goes channels-last, so that no transpose becomes a task."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


class ConvolutionChannelsLast(nn.Module):
    """A convolution alone, in any number of dimensions, whose data comes and goes channels-last, as above."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(x.movedim(-1, 1))
        return result.movedim(1, -1)

    def plain(self, x: Tensor) -> Example:
        """Return the convolution alone, and its input with channels first, as PyTorch has them."""
        return self.conv, (x.movedim(-1, 1).contiguous(),)


class Dense(nn.Module):
    """A dense layer with bias and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.dense(x))


class Matmul(nn.Module):
    """Batched product of two activations."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.matmul(left, right)


class _RowSum(nn.Module):
    """Sums over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=-1)


class _RowMax(nn.Module):
    """Maxima over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax(dim=-1)


class _RowMean(nn.Module):
    """Means over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=-1)


class Branches(nn.Module):
    """Workloads side by side; each takes the next ones of the inputs."""

    def __init__(self, *branches: tuple[nn.Module, int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(module for module, _ in branches)
        self.counts = [count for _, count in branches]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        results, at = [], 0
        for branch, count in zip(self.branches, self.counts, strict=True):
            results.append(branch(*inputs[at : at + count]))
            at += count
        return tuple(results)


def example(make: Callable[[], Branches], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Example:
    """The module in a type with its example inputs, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        module = make()
        with torch.no_grad():
            for part in module.modules():
                if isinstance(part, nn.LayerNorm):
                    nn.init.uniform_(part.weight, 0.6, 1.2)
                    nn.init.uniform_(part.bias, -0.2, 0.2)
        if dtype == torch.uint8:
            return module.eval(), tuple(torch.randint(0, 256, shape, dtype=dtype) for shape in shapes)
        return module.eval().to(dtype), tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def dataset() -> Example:
    """Eight workloads of convolutional networks and transformers.

    Dense 128x768 by 768x768 with bias and ReLU; batched matmul 12x128x64 by 12x64x128 of two activations; convolutions
    with bias and ReLU: 3x3 56x56x64 to 64, 3x3 14x14x256 to 256, 1x1 28x28x128 to 256, depthwise 3x3 56x56x128; softmax
    over 12x128x128; layer norm over 128x768.
    """
    return example(
        lambda: Branches(
            (Dense(768, 768), 1),
            (Matmul(), 2),
            (ChannelsLast(64, 64, 3), 1),
            (ChannelsLast(256, 256, 3), 1),
            (ChannelsLast(128, 256, 1), 1),
            (ChannelsLast(128, 128, 3, groups=128), 1),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(768), 1),
        ),
        (128, 768),
        (12, 128, 64),
        (12, 64, 128),
        (1, 56, 56, 64),
        (1, 14, 14, 256),
        (1, 28, 28, 128),
        (1, 56, 56, 128),
        (12, 128, 128),
        (128, 768),
    )


def other_tasks() -> Example:
    """Six other workloads than those of :func:`dataset`: other shapes, strides and extents with odd factors.

    The analyzer's errors on them were looked at: what is shown of it on them is in-sample. See :func:`untouched`.

    Dense 64x1024 by 1024x512 with bias and ReLU; batched matmul 8x196x64 by 8x64x196; convolutions with bias and ReLU:
    3x3 with stride 2 28x28x96 to 192, 1x1 14x14x480 to 112, depthwise 5x5 28x28x120; softmax over 64x1000.
    """
    return example(
        lambda: Branches(
            (Dense(1024, 512), 1),
            (Matmul(), 2),
            (ChannelsLast(96, 192, 3, stride=2), 1),
            (ChannelsLast(480, 112, 1), 1),
            (ChannelsLast(120, 120, 5, groups=120), 1),
            (nn.Softmax(dim=-1), 1),
        ),
        (64, 1024),
        (8, 196, 64),
        (8, 64, 196),
        (1, 28, 28, 96),
        (1, 14, 14, 480),
        (1, 28, 28, 120),
        (64, 1000),
    )


def grouped() -> Example:
    """Six grouped and depthwise convolutions, to develop on: the analyzer's errors on them were looked at.

    Grouped 3x3: 8 groups 14x14x128 to 128, 2 groups 20x20x64 to 128, 32 groups 20x20x128 to 128; depthwise: 3x3
    40x40x96, 5x5 14x14x240, 3x3 with stride 2 28x28x192.
    """
    return example(
        lambda: Branches(
            (nn.Conv2d(128, 128, 3, padding=1, groups=8), 1),
            (nn.Conv2d(64, 128, 3, padding=1, groups=2), 1),
            (nn.Conv2d(128, 128, 3, padding=1, groups=32), 1),
            (nn.Conv2d(96, 96, 3, padding=1, groups=96), 1),
            (nn.Conv2d(240, 240, 5, padding=2, groups=240), 1),
            (nn.Conv2d(192, 192, 3, stride=2, padding=1, groups=192), 1),
        ),
        (1, 128, 14, 14),
        (1, 64, 20, 20),
        (1, 128, 20, 20),
        (1, 96, 40, 40),
        (1, 240, 14, 14),
        (1, 192, 28, 28),
    )


def rows() -> Example:
    """Kernels along rows, and a depthwise convolution, for development on a third CPU.

    Softmax over 96x512 and 40x1600; layer norms of 192x512 and 48x1280; sums of 900 rows of 620; depthwise 5x5
    convolution of 128 channels on 26x26.
    """
    return example(
        lambda: Branches(
            (nn.Softmax(dim=-1), 1),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(512), 1),
            (nn.LayerNorm(1280), 1),
            (_RowSum(), 1),
            (nn.Conv2d(128, 128, 5, padding=2, groups=128), 1),
        ),
        (96, 512),
        (40, 1600),
        (192, 512),
        (48, 1280),
        (900, 620),
        (1, 128, 26, 26),
    )


def strided() -> Example:
    """Eight kernels for development, four with a stride and five with odd extents, on the CPU of :func:`rows`.

    Depthwise convolutions: 3x3 with stride 2 on 30x30x144 and 22x22x240, 5x5 with stride 2 on 26x26x120, 3x3 on
    19x19x160; convolutions in one dimension (k5, 80 to 112 on 300) and in three (k3 with stride 2, 24 to 40 on
    6x18x18); dense 104x600 by 600x392 with bias and ReLU; means of 500 rows of 1,300.
    """
    return example(
        lambda: Branches(
            (nn.Conv2d(144, 144, 3, stride=2, padding=1, groups=144), 1),
            (nn.Conv2d(240, 240, 3, stride=2, padding=1, groups=240), 1),
            (nn.Conv2d(120, 120, 5, stride=2, padding=2, groups=120), 1),
            (nn.Conv2d(160, 160, 3, padding=1, groups=160), 1),
            (ConvolutionChannelsLast(nn.Conv1d(80, 112, 5, padding=2)), 1),
            (ConvolutionChannelsLast(nn.Conv3d(24, 40, 3, stride=2, padding=1)), 1),
            (Dense(600, 392), 1),
            (_RowMean(), 1),
        ),
        (1, 144, 30, 30),
        (1, 240, 22, 22),
        (1, 120, 26, 26),
        (1, 160, 19, 19),
        (1, 300, 80),
        (1, 6, 18, 18, 24),
        (104, 600),
        (500, 1300),
    )


def untouched() -> Example:
    """Ten workloads; docs/datasets.md says what their records were used for.

    Convolutions in one dimension (k5, 256 to 256 on 64), in three (k3, 16 to 32 on 8x28x28), dilated, grouped,
    depthwise and transposed (two-dimensional, on 28x28 and 14x14); dense 96x1536 by 1536x640; softmax over 256x384;
    layer norm of 200x640; sums of 2,048 rows of 777.
    """
    return example(
        lambda: Branches(
            (nn.Conv1d(256, 256, 5, padding=2), 1),
            (nn.Conv3d(16, 32, 3, padding=1), 1),
            (nn.Conv2d(64, 96, 3, padding=2, dilation=2), 1),
            (nn.Conv2d(96, 96, 3, padding=1, groups=4), 1),
            (nn.Conv2d(144, 144, 3, padding=1, groups=144), 1),
            (nn.ConvTranspose2d(96, 48, 4, stride=2, padding=1), 1),
            (Dense(1536, 640), 1),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(640), 1),
            (_RowSum(), 1),
        ),
        (1, 256, 64),
        (1, 16, 8, 28, 28),
        (1, 64, 28, 28),
        (1, 96, 28, 28),
        (1, 144, 28, 28),
        (1, 96, 14, 14),
        (96, 1536),
        (256, 384),
        (200, 640),
        (2048, 777),
    )


def unseen() -> Example:
    """Twelve workloads; docs/datasets.md says what their records were used for.

    Convolutions in one dimension (k3 with stride 2, 192 to 320 on 96), in three (k3, 24 to 24 on 6x20x20), dilated by
    3, in five groups, depthwise 5x5, transposed, and 1x1 (two-dimensional, on 12x12 to 26x26); dense 72x896 by 896x320;
    batched matmul 6x160x80 by 6x80x160; softmax over 160x900; layer norm of 300x448; maxima of 1,536 rows of 1,030.
    """
    return example(
        lambda: Branches(
            (nn.Conv1d(192, 320, 3, stride=2, padding=1), 1),
            (nn.Conv3d(24, 24, 3, padding=1), 1),
            (nn.Conv2d(80, 80, 3, padding=3, dilation=3), 1),
            (nn.Conv2d(160, 160, 3, padding=1, groups=5), 1),
            (nn.Conv2d(200, 200, 5, padding=2, groups=200), 1),
            (nn.ConvTranspose2d(128, 64, 3, stride=2, padding=1, output_padding=1), 1),
            (nn.Conv2d(112, 224, 1), 1),
            (Dense(896, 320), 1),
            (Matmul(), 2),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(448), 1),
            (_RowMax(), 1),
        ),
        (1, 192, 96),
        (1, 24, 6, 20, 20),
        (1, 80, 24, 24),
        (1, 160, 18, 18),
        (1, 200, 20, 20),
        (1, 128, 12, 12),
        (1, 112, 26, 26),
        (72, 896),
        (6, 160, 80),
        (6, 80, 160),
        (160, 900),
        (300, 448),
        (1536, 1030),
    )


def fresh() -> Example:
    """Thirteen workloads; docs/datasets.md says what their records were used for.

    Convolutions in one dimension (k7, 64 to 128 on 400), in three (k3 with stride 2, 16 to 48 on 8x24x24), 5x5 dilated
    by 2, in six groups, depthwise 3x3 with stride 2 and 7x7, transposed, and 3x3 (two-dimensional, on 22x22 to 44x44);
    dense 112x704 by 704x416; batched matmul 10x144x48 by 10x48x144; softmax over 120x1200; layer norm of 260x576; means
    of 640 rows of 1,900.
    """
    return example(
        lambda: Branches(
            (ConvolutionChannelsLast(nn.Conv1d(64, 128, 7, padding=3)), 1),
            (ConvolutionChannelsLast(nn.Conv3d(16, 48, 3, stride=2, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(48, 64, 5, padding=4, dilation=2)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(96, 192, 3, padding=1, groups=6)), 1),
            (nn.Conv2d(176, 176, 3, stride=2, padding=1, groups=176), 1),
            (nn.Conv2d(104, 104, 7, padding=3, groups=104), 1),
            (nn.ConvTranspose2d(64, 32, 2, stride=2), 1),
            (ConvolutionChannelsLast(nn.Conv2d(36, 72, 3, padding=1)), 1),
            (Dense(704, 416), 1),
            (Matmul(), 2),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(576), 1),
            (_RowMean(), 1),
        ),
        (1, 400, 64),
        (1, 8, 24, 24, 16),
        (1, 32, 32, 48),
        (1, 22, 22, 96),
        (1, 176, 34, 34),
        (1, 104, 24, 24),
        (1, 64, 30, 30),
        (1, 44, 44, 36),
        (112, 704),
        (10, 144, 48),
        (10, 48, 144),
        (120, 1200),
        (260, 576),
        (640, 1900),
    )


def models() -> Example:
    """Fourteen kernels whose shapes are those of well-known networks; docs/datasets.md says what for.

    Convolutions: in one dimension, Whisper's first (k3, 80 to 384 on 300); in three, R3D's (k3, 64 to 64 on 4x14x14);
    dilated by 2, a DRN's (3x3, 128 to 128 on 28x28); in 13 groups, RegNetY-400MF's (3x3, 104 on 28x28); depthwise,
    EfficientNet-B0's (5x5 with stride 2 on 56x56x144) and ConvNeXt-T's (7x7 on 28x28x192); transposed, a U-Net's (2x2,
    128 to 64 on 28x28); 1x1, MobileNetV2's (96 to 24 on 56x56); 3x3 with stride 2, ResNet-18's (64 to 128 on 56x56).
    Dense, DeiT-Ti's (197x192 by 192x768); attention of Swin-T's windows (192x49x32 by 192x32x49) and its softmax
    (192x49x49) and layer norm (3136x96); EfficientNet-B0's last pool (means of 1,280 rows of 49).
    """
    return example(
        lambda: Branches(
            (ConvolutionChannelsLast(nn.Conv1d(80, 384, 3, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv3d(64, 64, 3, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(128, 128, 3, padding=2, dilation=2)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(104, 104, 3, padding=1, groups=13)), 1),
            (nn.Conv2d(144, 144, 5, stride=2, padding=2, groups=144), 1),
            (nn.Conv2d(192, 192, 7, padding=3, groups=192), 1),
            (nn.ConvTranspose2d(128, 64, 2, stride=2), 1),
            (ConvolutionChannelsLast(nn.Conv2d(96, 24, 1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(64, 128, 3, stride=2, padding=1)), 1),
            (Dense(192, 768), 1),
            (Matmul(), 2),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(96), 1),
            (_RowMean(), 1),
        ),
        (1, 300, 80),
        (1, 4, 14, 14, 64),
        (1, 28, 28, 128),
        (1, 28, 28, 104),
        (1, 144, 56, 56),
        (1, 192, 28, 28),
        (1, 128, 28, 28),
        (1, 56, 56, 96),
        (1, 56, 56, 64),
        (197, 192),
        (192, 49, 32),
        (192, 32, 49),
        (192, 49, 49),
        (3136, 96),
        (1280, 49),
    )


def deployed() -> Example:
    """Fourteen more kernels with the shapes of well-known networks; docs/datasets.md says what for.

    Convolutions: in one dimension, wav2vec 2.0's (k3 with stride 2, 512 to 512 on 199); in three, I3D's (k3, 48 to 128
    on 2x7x7); 3x3, SqueezeNet's (64 to 256 on 13x13); 7x7 with stride 2, ResNet's first (3 to 64 on 224x224); dilated
    by 2, a CSRNet's (3x3, 128 to 64 on 28x28); in 32 groups, ResNeXt-50's (3x3, 128 on 56x56); depthwise,
    MobileNetV3-L's (5x5 with stride 2 on 56x56x72) and MobileNetV2's (3x3 on 14x14x384); transposed, a DCGAN's (4x4
    with stride 2, 128 to 64 on 16x16). Dense, BERT's with 64 tokens (64x768 by 768x768); attention of ViT-B/16
    (12x197x64 by 12x64x197) and its softmax (12x197x197); MiniLM's layer norm (512x384); means of 768 rows of 196.
    """
    return example(
        lambda: Branches(
            (ConvolutionChannelsLast(nn.Conv1d(512, 512, 3, stride=2)), 1),
            (ConvolutionChannelsLast(nn.Conv3d(48, 128, 3, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(64, 256, 3, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(3, 64, 7, stride=2, padding=3)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(128, 64, 3, padding=2, dilation=2)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(128, 128, 3, padding=1, groups=32)), 1),
            (nn.Conv2d(72, 72, 5, stride=2, padding=2, groups=72), 1),
            (nn.Conv2d(384, 384, 3, padding=1, groups=384), 1),
            (nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1), 1),
            (Dense(768, 768), 1),
            (Matmul(), 2),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(384), 1),
            (_RowMean(), 1),
        ),
        (1, 199, 512),
        (1, 2, 7, 7, 48),
        (1, 13, 13, 64),
        (1, 224, 224, 3),
        (1, 28, 28, 128),
        (1, 56, 56, 128),
        (1, 72, 56, 56),
        (1, 384, 14, 14),
        (1, 128, 16, 16),
        (64, 768),
        (12, 197, 64),
        (12, 64, 197),
        (12, 197, 197),
        (512, 384),
        (768, 196),
    )


def served() -> Example:
    """Fifteen more kernels with the shapes of well-known networks; docs/datasets.md says what for.

    Convolutions: in one dimension, HiFi-GAN's (k3 dilated by 3, 128 to 128 on 256); in three, a 3D U-Net's (k3, 32 to
    64 on 4x16x16); 3x3, DenseNet-121's (128 to 32 on 28x28); dilated by 6, a branch of DeepLab's pyramid (3x3, 96 to 64
    on 33x33); in 3 groups, ShuffleNet's (1x1, 240 to 60 on 28x28); depthwise, MobileNetV1's (3x3 with stride 2 on
    56x56x128) and EfficientNet-B0's (5x5 with stride 2 on 14x14x672); transposed, a pix2pix's (4x4 with stride 2, 256
    to 128 on 8x8); 1x1, ResNet-50's (256 to 64 on 56x56). Dense, T5-small's (96x512 by 512x2048); attention of CLIP's
    text (8x77x64 by 8x64x77) and its softmax (8x77x77); Swin-T's second layer norm (784x192); a Llama's RMS norm
    (128x512); means of 240 rows of 784.
    """
    return example(
        lambda: Branches(
            (ConvolutionChannelsLast(nn.Conv1d(128, 128, 3, padding=3, dilation=3)), 1),
            (ConvolutionChannelsLast(nn.Conv3d(32, 64, 3, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(128, 32, 3, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(96, 64, 3, padding=6, dilation=6)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(240, 60, 1, groups=3)), 1),
            (nn.Conv2d(128, 128, 3, stride=2, padding=1, groups=128), 1),
            (nn.Conv2d(672, 672, 5, stride=2, padding=2, groups=672), 1),
            (nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1), 1),
            (ConvolutionChannelsLast(nn.Conv2d(256, 64, 1)), 1),
            (Dense(512, 2048), 1),
            (Matmul(), 2),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(192), 1),
            (nn.RMSNorm(512, eps=1e-6), 1),
            (_RowMean(), 1),
        ),
        (1, 256, 128),
        (1, 4, 16, 16, 32),
        (1, 28, 28, 128),
        (1, 33, 33, 96),
        (1, 28, 28, 240),
        (1, 128, 56, 56),
        (1, 672, 14, 14),
        (1, 256, 8, 8),
        (1, 56, 56, 256),
        (96, 512),
        (8, 77, 64),
        (8, 64, 77),
        (8, 77, 77),
        (784, 192),
        (128, 512),
        (240, 784),
    )


def hosted() -> Example:
    """Fourteen more kernels with the shapes of well-known networks; docs/datasets.md says what for.

    Convolutions: in one dimension, Jasper's (k11, 128 to 128 on 200); in three, R(2+1)D's (1x3x3, 64 to 144 on
    4x14x14); 3x3, YOLOv3-tiny's (32 to 64 on 52x52); 3x3 with stride 2, MobileNet's first (3 to 32 on 224x224); dilated
    by 4, ENet's (3x3, 32 to 32 on 64x64); in 32 groups, ResNeXt-101's (3x3, 256 on 28x28); depthwise, MobileNetV3-S'
    (5x5 with stride 2 on 28x28x96) and Xception's (3x3 on 19x19x728); transposed, an FCN's (4x4 with stride 2, 21 to 21
    on 32x32). Dense, Whisper-tiny's (150x384 by 384x1536); attention of BERT with 96 tokens (12x96x64 by 12x64x96); a
    T5's softmax (8x100x100); ViT-S' layer norm (197x384); PointNet's pool (maxima of 512 rows of 900).
    """
    return example(
        lambda: Branches(
            (ConvolutionChannelsLast(nn.Conv1d(128, 128, 11, padding=5)), 1),
            (ConvolutionChannelsLast(nn.Conv3d(64, 144, (1, 3, 3), padding=(0, 1, 1))), 1),
            (ConvolutionChannelsLast(nn.Conv2d(32, 64, 3, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(3, 32, 3, stride=2, padding=1)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(32, 32, 3, padding=4, dilation=4)), 1),
            (ConvolutionChannelsLast(nn.Conv2d(256, 256, 3, padding=1, groups=32)), 1),
            (nn.Conv2d(96, 96, 5, stride=2, padding=2, groups=96), 1),
            (nn.Conv2d(728, 728, 3, padding=1, groups=728), 1),
            (nn.ConvTranspose2d(21, 21, 4, stride=2, padding=1), 1),
            (Dense(384, 1536), 1),
            (Matmul(), 2),
            (nn.Softmax(dim=-1), 1),
            (nn.LayerNorm(384), 1),
            (_RowMax(), 1),
        ),
        (1, 200, 128),
        (1, 4, 14, 14, 64),
        (1, 52, 52, 32),
        (1, 224, 224, 3),
        (1, 64, 64, 32),
        (1, 28, 28, 256),
        (1, 96, 28, 28),
        (1, 728, 19, 19),
        (1, 21, 32, 32),
        (150, 384),
        (12, 96, 64),
        (12, 64, 96),
        (8, 100, 100),
        (197, 384),
        (512, 900),
    )
