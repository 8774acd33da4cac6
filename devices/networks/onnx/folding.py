"""Facts about an ONNX graph that are known before it runs: shapes, types, constants, and values computed from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, shape_inference

from devices.networks.onnx.nodes import GraphFacts, as_array

ONNX = ("", "ai.onnx")
"""The names of the domain of ONNX's own operators."""

COMPUTED = frozenset(
    getattr(TensorProto, name)
    for name in (
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
        *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    )
)
"""Element types that kernels compute in."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_LARGEST_CONSTANT = 1 << 22
"""Elements of the largest folded constant. Larger values are computed when the network runs."""


def known(model: onnx.ModelProto) -> GraphFacts:
    """Return the facts of a model."""
    return GraphFacts(constants_of(model.graph), dict(_fixed_shapes(model)), dict(_types(model)), opset_of(model))


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return next((opset.version for opset in model.opset_import if opset.domain in ONNX), 1)


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Compute everything that does not depend on the inputs, until nothing more is known."""
    while True:
        try:
            model = shape_inference.infer_shapes(model, data_prop=True)
        except Exception:
            return model  # for example, it has an operator outside of ONNX
        constants = constants_of(model.graph)
        shapes = dict(_fixed_shapes(model))
        stay: list[onnx.NodeProto] = []
        computed: dict[str, Any] = {}
        for node in model.graph.node:
            values = values_of(node, constants, shapes, opset_of(model))
            if values is None:
                stay.append(node)
            else:
                results = dict(zip(node.output, values, strict=True))
                computed.update(results)
                constants.update(results)
        if not computed:
            return model
        outputs = {value.name for value in model.graph.output}
        read = outputs | {name for node in stay for name in reads(node)}
        weights = model.graph.initializer
        for at in reversed(range(len(weights))):
            if weights[at].name not in read:  # TVM would read it, and may not know its type
                del weights[at]
        del model.graph.node[:]
        model.graph.node.extend(stay)
        model.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in computed.items() if name in read
        )


def values_of(
    node: onnx.NodeProto, constants: dict[str, Any], shapes: dict[str, tuple[int, ...]], opset: int
) -> tuple[np.ndarray[Any, Any], ...] | None:
    """Return the outputs of ``node``, read as in version ``opset`` of the operators. None if they are not known before
    the network runs."""
    from onnx.reference import ReferenceEvaluator

    if (
        node.domain not in ("", "ai.onnx")
        or node.op_type in RANDOM | CONTROL_FLOW | {"Dropout"}
        or not all(node.output)
    ):
        return None
    if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
        shape = np.asarray(shapes[node.input[0]], np.int64)
        if node.op_type == "Size":
            return (np.asarray(shape.prod(), np.int64),)
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        return (shape[bounds.get("start", 0) : bounds.get("end", len(shape))],)
    if node.op_type == "Constant" and any(attribute.name == "value" for attribute in node.attribute):
        return None  # already a constant
    if any(name and name not in constants for name in node.input):
        return None
    if node.op_type in ("DequantizeLinear", "QuantizeLinear") and not _in_blocks(node, constants):
        return None  # quantised weights stay: they are smaller
    try:
        feeds = {name: as_array(constants[name]) for name in node.input if name}
        known, results = (map(onnx.helper.make_empty_tensor_value_info, names) for names in (feeds, node.output))
        graph = onnx.helper.make_graph([node], node.op_type, list(known), list(results))
        alone = onnx.helper.make_model_gen_version(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        values = ReferenceEvaluator(alone).run(None, feeds)
    except Exception:
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        return None
    arrays = tuple(np.asarray(value) for value in values)
    small = sum(array.size for array in arrays) <= _LARGEST_CONSTANT
    return arrays if small or node.op_type == "DequantizeLinear" else None


def _in_blocks(node: onnx.NodeProto, constants: dict[str, Any]) -> bool:
    """Return true if quantised numbers have fewer bits than types of kernels, or a scale for each block of them."""
    blocks = any(attribute.name == "block_size" and attribute.i for attribute in node.attribute)
    return blocks or getattr(constants[node.input[0]], "data_type", TensorProto.INT8) not in COMPUTED


def constants_of(graph: onnx.GraphProto) -> dict[str, Any]:
    """Return the constants of a graph by name: initializers, and values of Constant nodes."""
    known: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            known.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return known


def _fixed_shapes(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(extent.HasField("dim_value") for extent in tensor.shape.dim):
            yield value.name, tuple(int(extent.dim_value) for extent in tensor.shape.dim)
    for weight in model.graph.initializer:
        yield weight.name, tuple(weight.dims)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that ``node`` reads, its branches included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from reads(inner)
        yield from (value.name for value in attribute.g.output)


def _types(model: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    """Yield the element types by name of all tensors that the graph computes with."""
    used = {name for node in model.graph.node for name in (*node.input, *node.output)}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            yield value.name, value.type.tensor_type.elem_type
    yield from ((weight.name, weight.data_type) for weight in model.graph.initializer if weight.name in used)
