"""Networks of single kernels, for a GPU that nothing has run on yet: ``python -m bench gpu-first``."""

from __future__ import annotations

from torch import Tensor, nn

from bench.networks import operator_modules
from bench.networks.operator_names import operator_names

Example = tuple[nn.Module, tuple[Tensor, ...]]


class _SideBySide(nn.Module):
    """Modules that share nothing: the inputs of the first, then those of the second, and so on; one output each."""

    def __init__(self, examples: list[Example]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(module for module, _ in examples)
        self.counts = [len(inputs) for _, inputs in examples]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs, start = [], 0
        for part, count in zip(self.parts, self.counts, strict=True):
            outputs.append(part(*inputs[start : start + count]))
            start += count
        return tuple(outputs)


def operators() -> Example:
    """Every operator of :mod:`bench.networks.operator_modules`."""
    return _beside([getattr(operator_modules, name)() for name in operator_names()])


def _beside(examples: list[Example]) -> Example:
    return _SideBySide(examples).eval(), tuple(tensor for _, inputs in examples for tensor in inputs)
