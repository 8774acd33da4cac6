"""Values between the inputs and the outputs of an ONNX graph, made outputs of another model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper, shape_inference

from devices.networks.network import Intermediate
from devices.networks.onnx.dimensions import with_input_shapes
from devices.networks.onnx.folding import COMPUTED, reads

_OF_SHAPES = frozenset({"Shape", "Size"})
_MOST_SHOWN = 60  # characters of an attribute


def intermediates(file: Path) -> tuple[Intermediate, ...]:
    """Return the first output of each node that depends on the inputs, if kernels can have its type."""
    model = shape_inference.infer_shapes(onnx.load(str(file), load_external_data=False))
    types = _types(model)
    weights = {tensor.name for tensor in model.graph.initializer}
    computed = {value.name for value in model.graph.input} - weights
    found = []
    for at, node in enumerate(model.graph.node):
        if node.op_type in _OF_SHAPES or computed.isdisjoint(reads(node)):
            continue
        computed.update(node.output)
        if node.output[0] in types and types[node.output[0]].type.tensor_type.elem_type in COMPUTED:
            place = f"{node.name or node.output[0]!r}, node {at + 1} of {len(model.graph.node)}"
            found.append(Intermediate(node.output[0], f"{_operator(node)} ({place}){_arguments(node, types)}"))
    return tuple(found)


def write_returning(
    file: Path, values: Sequence[Intermediate], target: Path, shapes: Mapping[str, Sequence[int]]
) -> None:
    """Write the model in ``file`` with ``values`` as its outputs, and inputs of these shapes. Raises ValueError if its
    weights are too large for one file."""
    model = with_input_shapes(onnx.load(str(file)), shapes)
    bare = with_input_shapes(onnx.load(str(file), load_external_data=False), shapes)
    types = _types(shape_inference.infer_shapes(bare))
    del model.graph.output[:]
    model.graph.output.extend(types[value.name] for value in values)
    onnx.save(model, str(target))


def _types(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the types of the tensors of ``model`` by name."""
    given = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    known = {value.name: value for value in given if value.type.tensor_type.elem_type}
    for weight in model.graph.initializer:
        known[weight.name] = helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    return known


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def _arguments(node: onnx.NodeProto, types: dict[str, onnx.ValueInfoProto]) -> str:
    operands = ", ".join(_shown(types.get(name)) for name in node.input if name)
    attributes = ", ".join(_attributes(node))
    return f" of {operands}" + (f" with {attributes}" if attributes else "")


def _shown(value: onnx.ValueInfoProto | None) -> str:
    if value is None:
        return "a value of unknown type"
    tensor = value.type.tensor_type
    extents = [str(each.dim_value) if each.HasField("dim_value") else "?" for each in tensor.shape.dim]
    return f"{helper.tensor_dtype_to_np_dtype(tensor.elem_type)}[{', '.join(extents)}]"


def _attributes(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        told = value.decode() if isinstance(value, bytes) else "..." if attribute.HasField("g") else str(value)
        yield f"{attribute.name}={' '.join(told.split())[:_MOST_SHOWN]}"
