"""Networks that onnxruntime's own tools quantise, statically (QDQ, QOperator) and dynamically."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import onnx

from bench.networks.quantise import quantise_module
from tests.zoo.catalogue import Entry, Example, Make
from tests.zoo.written_onnx import OnnxGraph

_SOURCES = {
    "resnet18": "torchvision_networks",
    "mobilenet_v2": "torchvision_networks",
    "efficientnet_b0": "torchvision_networks",
    "vit_of_4_layers": "torchvision_networks",
    "bert": "transformers_networks",
}


def _quantised(name: str, family: str, **options: Any) -> Example:
    module, inputs = Entry(name, family).make()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "quantised.onnx"
        quantise_module(module, inputs, file, **options)
        model = onnx.load(str(file))
    return OnnxGraph(model), inputs


NETWORKS: dict[str, Make] = {
    **{f"{name}_qdq": functools.partial(_quantised, name, family) for name, family in _SOURCES.items()},
    "resnet18_qoperator": functools.partial(_quantised, "resnet18", "torchvision_networks", qdq=False),
    "bert_dynamic": functools.partial(_quantised, "bert", "transformers_networks", dynamic=True),
}
