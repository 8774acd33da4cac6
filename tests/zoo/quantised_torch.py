"""Networks that torch's own quantiser (pt2e, of torchao) quantises for x86, statically and dynamically."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.catalogue import Entry, Example, Make, other_values, use_installed

_SAMPLES = 4


class _Quantised(nn.Module):
    """A quantised program as a module: programs refuse ``eval()``."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, *values: Tensor) -> Any:
        return self.program(*values)

    def train(self, mode: bool = True) -> _Quantised:  # noqa: ARG002 - what it is stays
        return self


def _quantised(name: str, family: str, *, dynamic: bool = False) -> Example:
    use_installed()
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    module, inputs = Entry(name, family).make()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(module, inputs).module(), quantizer)
        for seed in range(_SAMPLES):
            prepared(*(other_values(value, seed) for value in inputs))
        return _Quantised(convert_pt2e(prepared)), inputs


NETWORKS: dict[str, Make] = {
    **{
        f"{name}_pt2e": functools.partial(_quantised, name, "torchvision_networks")
        # RegNet instead of ResNet, of which one ReLU is called several times: torchao 0.18 refuses that.
        for name in ("regnet_x_400mf", "mobilenet_v2", "efficientnet_b0", "vit_of_4_layers")
    },
    "bert_pt2e": functools.partial(_quantised, "bert", "transformers_networks"),
    "bert_pt2e_dynamic": functools.partial(_quantised, "bert", "transformers_networks", dynamic=True),
}
