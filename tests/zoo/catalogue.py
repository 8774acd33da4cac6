"""The networks of the zoo by name: how each is made, with inputs to try it on.

``FAMILIES`` names the modules that define them; each has ``NETWORKS``, from name to a function that returns a torch
module and its example inputs. Weights are random, from one seed, and made so that every one of them matters
(:func:`enlivened`). What the project itself does not need (torchvision, transformers) is installed by ``make zoo``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from bench.networks.torchvision_operators import load_or_define

Example = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
Make = Callable[[], Example]

FORMS = ("torch", "pt2", "onnx")

FAMILIES = (
    *("activations", "convolutions", "sampling", "norms", "recurrent", "attention", "blocks", "graphs", "diffusion"),
    *("written_onnx", "torchvision_networks", "transformers_networks", "detection", "generation"),
    *("quantised_onnx", "quantised_torch"),
)
SMALL = FAMILIES[:10]
"""Families that need torch and ONNX Runtime alone."""

_SEED = 20
_SITE = Path(sys.prefix) / "zoo"


@dataclass(frozen=True)
class Entry:
    name: str
    family: str

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms in which it is tried: a graph that was written in ONNX has no other, and torch's exporter writes no
        quantised program in ONNX."""
        if self.family in ("written_onnx", "quantised_onnx"):
            return ("onnx",)
        return ("torch", "pt2") if self.family == "quantised_torch" else FORMS

    def make(self) -> Example:
        """The module, ready for inference, and its inputs; the same in every process."""
        torch.manual_seed(_SEED)
        module, inputs = _family(self.family)[self.name]()
        if self.family.startswith("quantised"):
            return module, inputs  # enlivened before it was quantised
        return enlivened(module.eval(), inputs), inputs


def entries(families: tuple[str, ...] = FAMILIES) -> Iterator[Entry]:
    """All networks of ``families``. Raises ModuleNotFoundError where a package that they need is not installed."""
    for family in families:
        for name in _family(family):
            yield Entry(name, family)


def use_installed() -> None:
    """Lets what ``make zoo`` installed be imported; what the project itself has goes before it."""
    if str(_SITE) not in sys.path:
        sys.path.append(str(_SITE))
        load_or_define()


def _family(name: str) -> Mapping[str, Make]:
    networks: Mapping[str, Make] = importlib.import_module(f"tests.zoo.{name}").NETWORKS
    return networks


def enlivened(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    """``module`` with weights none of which could be left out unnoticed.

    Parameters that begin as one constant (scales of norms, biases, layer scales, position tables) become random, and
    batch norms take the statistics of what really comes to them, so that deep networks neither fade out nor explode.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point() or parameter.numel() < 2:
                continue
            first = parameter.flatten()[0]
            if bool((parameter == first).all()):
                if first == 0:
                    parameter.normal_(0.0, 0.1)
                else:
                    parameter.uniform_(0.5, 1.5)
    norms = [layer for layer in module.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    if norms:
        before = {norm: norm.momentum for norm in norms}
        for norm in norms:
            norm.momentum = 1.0
            norm.train()
        several = tuple(torch.cat([other_values(value, seed) for seed in range(4)]) for value in inputs)
        with torch.no_grad():
            module(*several)
        for norm in norms:
            norm.momentum = before[norm]
            norm.eval()
    return module


def other_values(value: torch.Tensor, seed: int) -> torch.Tensor:
    """A tensor like ``value`` with other numbers: normal ones, or integers of the same range. Masks (booleans, and
    integers that are 0 or 1) stay."""
    generator = torch.Generator().manual_seed(seed)
    if value.is_floating_point():
        return torch.randn(value.shape, generator=generator).to(value.dtype)
    largest = int(value.max()) if value.numel() else 0
    if value.dtype == torch.bool or largest <= 1:
        return value
    return torch.randint(0, largest + 1, value.shape, generator=generator, dtype=value.dtype)


def tensors(output: object) -> list[torch.Tensor]:
    """The tensors of a module's output, in the order in which torch.export flattens them."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def lifeless(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> str:
    """Why a comparison of this network's outputs would show little; empty where all is well."""
    with torch.no_grad():
        outputs = tensors(module(*inputs))
        others = tensors(module(*(other_values(value, 7) for value in inputs)))
    for at, (output, other) in enumerate(zip(outputs, others, strict=True)):
        values = output.double()
        if values.numel() > 1 and not bool((values != values.flatten()[0]).any()):
            return f"output {at} is constant"
        if output.shape != other.shape:
            continue
        largest = values[values.isfinite()].abs().max()
        change = (values - other.double()).nan_to_num(0.0, 0.0, 0.0).abs().max()
        if not change > 1e-2 * largest:
            return f"output {at} hardly depends on the inputs"
    return ""
