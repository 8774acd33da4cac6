"""ONNX files as graphs with their weights. Weights may be in files beside them, and be larger than a protocol buffer (2
GB).

External weights of a small model are read into it, as if its exporter had written them there. In a large model
(:data:`LARGEST_MODEL`), large weights become inputs of the graph, as each step that prepares the graph copies it. They
are bound in Relax later. They are mapped from the file, so that they take memory only once something is computed from
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by its name from here on
import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor, uses_external_data

from devices.networks.network import Array

LARGEST_MODEL = 1 << 30
"""Most bytes of external weights that are read into the graph."""
_LARGE = 1 << 20
"""Least bytes of a weight of a larger model that is left in its file."""
_IN_PARTS_OF_BYTES = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1})


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX model that was read."""

    proto: onnx.ModelProto
    weights: Mapping[str, Array]
    """Inputs of the model that are weights, by name."""


def read(file: Path) -> OnnxFile:
    """Read and check ``file``. Raises onnx's errors, which are of many types."""
    onnx.checker.check_model(
        str(file)
    )  # by its path: a model above 2 GB cannot be passed, and its external files are checked too
    proto = onnx.load(str(file), load_external_data=False)
    outside = [weight for weight in proto.graph.initializer if uses_external_data(weight)]
    if sum(_size(weight) for weight in outside) <= LARGEST_MODEL:
        onnx.load_external_data_for_model(proto, str(file.parent))
        return OnnxFile(proto, {})
    weights: dict[str, Array] = {}
    for weight in outside:
        if _size(weight) < _LARGE or weight.data_type in _IN_PARTS_OF_BYTES:
            load_external_data_for_tensor(weight, str(file.parent))
        else:
            weights[weight.name] = _mapped(weight, file.parent)
    _as_inputs(proto.graph, weights)
    return OnnxFile(proto, weights)


def _size(weight: TensorProto) -> int:
    """Return the bytes of a weight in numpy's type."""
    width: int = helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize
    return int(np.prod(weight.dims, dtype=np.int64)) * width


def _mapped(weight: TensorProto, folder: Path) -> Array:
    place = ExternalDataInfo(weight)
    dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
    # Mode "c" copies on write. Nothing is written, but TVM refuses read-only memory.
    return np.memmap(folder / place.location, dtype, "c", int(place.offset or 0), tuple(weight.dims))


def _as_inputs(graph: onnx.GraphProto, weights: Mapping[str, Array]) -> None:
    for at in reversed(range(len(graph.initializer))):
        if graph.initializer[at].name in weights:
            weight = graph.initializer[at]
            if weight.name not in {value.name for value in graph.input}:
                graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
            del graph.initializer[at]
