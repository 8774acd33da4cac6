"""Networks of independent kernels for a GPU: ``python -m bench gpu-first`` and ``bench gpu``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from bench.networks import operator_modules
from bench.networks.operator_names import operator_names
from examples.workloads import ConvolutionChannelsLast, Example

_SEED = 23


class SideBySide(nn.Module):
    """Independent modules. Takes the inputs of the first, then those of the second, and so on. Each has one output."""

    def __init__(self, examples: Mapping[str, Example]) -> None:
        super().__init__()
        self.names = tuple(examples)
        self.parts = nn.ModuleList(module for module, _ in examples.values())
        self.counts = [len(inputs) for _, inputs in examples.values()]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(part(*of_part) for part, of_part in self.examples(inputs).values())

    def examples(self, inputs: Sequence[Tensor]) -> dict[str, Example]:
        """Return each module with its own inputs out of ``inputs``, by name."""
        found, start = {}, 0
        for name, part, count in zip(self.names, self.parts, self.counts, strict=True):
            found[name] = (part, tuple(inputs[start : start + count]))
            start += count
        return found


class _Product(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.matmul(left, right)


def _product(*shapes: Sequence[int]) -> Callable[[], Example]:
    """A matrix product of two inputs of these shapes."""
    return lambda: (_Product(), tuple(torch.randn(*shape) for shape in shapes))


def _linear(rows: int, width: int, out: int) -> Callable[[], Example]:
    return lambda: (nn.Linear(width, out, bias=False), (torch.randn(rows, width),))


def _convolution(batch: int, channels: int, size: int, out: int, kernel: int, **options: int) -> Callable[[], Example]:
    """A convolution on channels-last data. With stride 1 the image keeps its size."""

    def example() -> Example:
        padding = kernel // 2 * options.get("dilation", 1)
        layer = nn.Conv2d(channels, out, kernel, padding=padding, bias=False, **options)  # type: ignore[arg-type]
        return ConvolutionChannelsLast(layer), (torch.randn(batch, size, size, channels),)

    return example


KERNELS: dict[str, Callable[[], Example]] = {
    "product of 1024": _product((1024, 1024), (1024, 1024)),
    "product of 2048": _product((2048, 2048), (2048, 2048)),
    "scores of 64 heads": _product((64, 256, 64), (64, 64, 256)),
    "mix of 64 heads": _product((64, 256, 256), (64, 256, 64)),
    "linear 512x768 to 3072": _linear(512, 768, 3072),
    "linear 512x3072 to 768": _linear(512, 3072, 768),
    "linear 512x2048 to 5632": _linear(512, 2048, 5632),
    "linear 512x5632 to 2048": _linear(512, 5632, 2048),
    "linear 16x4096 to 4096": _linear(16, 4096, 4096),
    "3x3 64 on 56": _convolution(16, 64, 56, 64, 3),
    "3x3 128 on 28": _convolution(16, 128, 28, 128, 3),
    "3x3 256 on 14": _convolution(16, 256, 14, 256, 3),
    "3x3 512 on 7": _convolution(16, 512, 7, 512, 3),
    "1x1 256 to 64 on 56": _convolution(8, 256, 56, 64, 1),
    "1x1 512 to 128 on 28": _convolution(16, 512, 28, 128, 1),
    "1x1 1024 to 256 on 14": _convolution(16, 1024, 14, 256, 1),
    "3x3 128 on 56, stride 2": _convolution(16, 128, 56, 128, 3, stride=2),
    "3x3 256 on 28, dilation 2": _convolution(16, 256, 28, 256, 3, dilation=2),
    "3x3 256 on 28, 8 groups": _convolution(16, 256, 28, 256, 3, groups=8),
    "3x3 128 on 56, depthwise": _convolution(16, 128, 56, 128, 3, groups=128),
}
"""Twenty products and convolutions of well-known networks: of ResNet-50 with 8 or 16 images, of BERT and a Llama with
512 tokens. They have 0.5 to 17 GFLOP, the depthwise one 0.1. This is enough for tensor cores to matter, and most of the
kernels take longer than a launch."""

RECORDED = (
    *("product of 1024", "scores of 64 heads", "linear 512x768 to 3072", "3x3 128 on 28", "3x3 256 on 14"),
    *("1x1 512 to 128 on 28", "3x3 128 on 56, stride 2", "3x3 128 on 56, depthwise"),
)
"""Names of eight of these kernels, for a dataset."""

_TINY: dict[str, Callable[[], Example]] = {
    "product of 32": _product((32, 32), (32, 32)),
    "3x3 16 on 8": _convolution(1, 16, 8, 16, 3),
}


def kernels() -> Example:
    """The twenty kernels of :data:`KERNELS` in float32."""
    return _beside(_made(KERNELS))


def kernels_fp16() -> Example:
    """The twenty kernels in float16."""
    return _halved(kernels())


def recorded() -> Example:
    """The eight kernels of :data:`RECORDED` in float32."""
    return _beside(_made({name: KERNELS[name] for name in RECORDED}))


def recorded_fp16() -> Example:
    """The eight kernels in float16."""
    return _halved(recorded())


def tiny() -> Example:
    """A product and a convolution that are quick on any machine: for rehearsals."""
    return _beside(_made(_TINY))


def tiny_fp16() -> Example:
    """The two kernels of :func:`tiny` in float16."""
    return _halved(tiny())


def operators() -> Example:
    """Every operator of :mod:`bench.networks.operator_modules`."""
    return _beside({name: getattr(operator_modules, name)() for name in operator_names()})


def _made(makers: Mapping[str, Callable[[], Example]]) -> dict[str, Example]:
    """Return the examples. The weights and inputs of each do not depend on the others."""
    examples = {}
    for name, make in makers.items():
        with torch.random.fork_rng():
            torch.manual_seed(_SEED)
            examples[name] = make()
    return examples


def _halved(example: Example) -> Example:
    network, inputs = example
    return network.half(), tuple(tensor.half() for tensor in inputs)


def _beside(examples: Mapping[str, Example]) -> Example:
    return SideBySide(examples).eval(), tuple(tensor for _, inputs in examples.values() for tensor in inputs)
