"""ONNX models made ready for TVM: what it lacks is written with other operators, what it misreads is refused.

- Operators that TVM has no translation for, or a wrong one, become the functions that ONNX defines them by.
- What does not depend on the inputs is computed now: shapes of fixed tensors, and all that is made of constants.
- Types that no kernel computes in, and operators in modes that TVM silently ignores, are refused by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, shape_inference

from devices.networks import onnx_quantization
from fleet_tune.errors import UnsupportedNetworkError

_COMPUTED = frozenset(
    getattr(TensorProto, name)
    for name in (
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL"),
        *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    )
)
"""Element types that kernels compute in."""

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})

_MISREAD = frozenset({"Mish", "Celu"})
"""Operators with a function in ONNX whose translation by TVM loses precision or is of another type."""

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_NOT_REPEATABLE = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
)
_LARGEST_CONSTANT = 1 << 22
"""Elements: what is larger is computed when the network runs."""

_FREE = "write it with other operators, or export the network with another opset"


def prepared(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """``model``, checked by ONNX, as TVM reads it rightly. ``where`` names it in refusals.

    Raises :class:`UnsupportedNetworkError`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about infinities in constants
        result = _folded(_in_functions(onnx_quantization.in_floats(model)))
    constants, types = _constants(result), dict(_types(result))
    for node in result.graph.node:
        reason = _refused(node, constants, types)
        if reason:
            raise UnsupportedNetworkError(f"{where} uses the operator {node.op_type} {reason}", _FREE)
    for name, kind in types.items():
        if kind not in _COMPUTED:
            type_name = TensorProto.DataType.Name(kind)
            raise UnsupportedNetworkError(
                f"{where}: {name!r} has the type {type_name}, which kernels do not have", _FREE
            )
    return result


def _in_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Nodes that TVM cannot read as the functions by which ONNX defines them, where it does."""
    from onnx import inliner
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    translations = _get_convert_map()
    names = {
        node.op_type
        for node in model.graph.node
        if node.domain in ("", "ai.onnx")
        and (node.op_type not in translations or node.op_type in _MISREAD or _has_optional_outputs(node))
    }
    if not names:
        return model
    try:
        return inliner.inline_selected_functions(
            _with_defaults(model, names), [("", name) for name in sorted(names)], inline_schema_functions=True
        )
    except Exception:  # it stays as it is, and is refused by its name where TVM does not know it
        return model


def _with_defaults(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """``model`` with the attributes that nodes of ``names`` leave out, which the inliner forgets."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    versions = {opset.domain: opset.version for opset in model.opset_import}
    for node in result.graph.node:
        if node.op_type not in names or not onnx.defs.has(node.op_type, versions.get("", 1), ""):
            continue
        given = {attribute.name for attribute in node.attribute}
        schema = onnx.defs.get_schema(node.op_type, versions.get("", 1), "")
        for name, attribute in schema.attributes.items():
            if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
                node.attribute.append(attribute.default_value)
    return result


def _has_optional_outputs(node: onnx.NodeProto) -> bool:
    """Of a norm: mean and deviation, for which TVM gives zeros."""
    return node.op_type == "LayerNormalization" and sum(bool(name) for name in node.output) > 1


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Computes what does not depend on the inputs, until nothing more is known."""
    while True:
        try:
            model = shape_inference.infer_shapes(model, data_prop=True)
        except Exception:
            return model  # of an operator outside of ONNX, say
        constants = _constants(model)
        shapes = dict(_fixed_shapes(model))
        stay: list[onnx.NodeProto] = []
        computed: dict[str, Any] = {}
        for node in model.graph.node:
            values = _value(node, {**constants, **computed}, shapes, model.opset_import)
            if values is None:
                stay.append(node)
            else:
                computed.update(zip(node.output, values, strict=True))
        if not computed:
            return model
        outputs = {value.name for value in model.graph.output}
        read = outputs | {name for node in stay for name in _reads(node)}
        weights = model.graph.initializer
        for at in reversed(range(len(weights))):
            if weights[at].name not in read:  # TVM reads them all, and not every type
                del weights[at]
        del model.graph.node[:]
        model.graph.node.extend(stay)
        model.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in computed.items() if name in read
        )


def _value(
    node: onnx.NodeProto, constants: dict[str, Any], shapes: dict[str, tuple[int, ...]], opsets: Any
) -> tuple[np.ndarray[Any, Any], ...] | None:
    """The outputs of ``node``, read as in ``opsets``, where they are known now."""
    from onnx.reference import ReferenceEvaluator

    if node.domain not in ("", "ai.onnx") or node.op_type in _NOT_REPEATABLE | _CONTROL_FLOW or not all(node.output):
        return None
    if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
        shape = np.asarray(shapes[node.input[0]], np.int64)
        if node.op_type == "Size":
            return (np.asarray(shape.prod(), np.int64),)
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        return (shape[bounds.get("start", 0) : bounds.get("end", len(shape))],)
    if node.op_type == "Constant" and any(attribute.name == "value" for attribute in node.attribute):
        return None  # is one
    if any(name and name not in constants for name in node.input):
        return None
    if node.op_type in ("DequantizeLinear", "QuantizeLinear") and not _in_blocks(node, constants):
        return None  # of weights: they stay small
    try:
        feeds = {name: _array(constants[name]) for name in node.input if name}
        known, results = (map(onnx.helper.make_empty_tensor_value_info, names) for names in (feeds, node.output))
        graph = onnx.helper.make_graph([node], node.op_type, list(known), list(results))
        alone = onnx.helper.make_model_gen_version(graph, opset_imports=opsets)
        values = ReferenceEvaluator(alone).run(None, feeds)
    except Exception:
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        return None
    arrays = tuple(np.asarray(value) for value in values)
    small = sum(array.size for array in arrays) <= _LARGEST_CONSTANT
    return arrays if small or node.op_type == "DequantizeLinear" else None


def _in_blocks(node: onnx.NodeProto, constants: dict[str, Any]) -> bool:
    """Whether quantised numbers are of fewer bits than kernels have, or have a scale for each block of them."""
    blocks = any(attribute.name == "block_size" and attribute.i for attribute in node.attribute)
    return blocks or getattr(constants[node.input[0]], "data_type", TensorProto.INT8) not in _COMPUTED


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    """What is known by name: tensors, and arrays."""
    known: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            known.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return known


def _array(constant: Any) -> np.ndarray[Any, Any]:
    if isinstance(constant, np.ndarray):
        return constant
    array: np.ndarray[Any, Any] = numpy_helper.to_array(constant)
    return array


def _fixed_shapes(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(extent.HasField("dim_value") for extent in tensor.shape.dim):
            yield value.name, tuple(int(extent.dim_value) for extent in tensor.shape.dim)
    for weight in model.graph.initializer:
        yield weight.name, tuple(weight.dims)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that ``node`` reads, its branches included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from _reads(inner)
        yield from (value.name for value in attribute.g.output)


def _types(model: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    """Element types by name of all tensors that the graph computes with."""
    used = {name for node in model.graph.node for name in (*node.input, *node.output)}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            yield value.name, value.type.tensor_type.elem_type
    yield from ((weight.name, weight.data_type) for weight in model.graph.initializer if weight.name in used)


def _refused(node: onnx.NodeProto, constants: dict[str, Any], types: dict[str, int]) -> str:
    """Why ``node`` cannot be imported although TVM would: it would compute something else. Empty where it can."""
    not_integers = any(types.get(name) in _FLOATS for name in node.input)
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in _CONTROL_FLOW:
        return "whose course depends on data"
    if node.op_type == "IsInf" and not (attributes.get("detect_positive", 1) and attributes.get("detect_negative", 1)):
        return "for one sign"
    if node.op_type == "Mod" and not attributes.get("fmod", 0) and not_integers:
        return "of floating-point numbers with fmod=0"
    if node.op_type == "BitShift" and node.input[1] not in constants:
        return "by numbers that depend on data"
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        training = constants.get(node.input[2])
        if training is None or bool(_array(training)):
            return "as in training"
    if node.op_type == "BatchNormalization" and attributes.get("training_mode", 0):
        return "as in training"
    if node.op_type == "SpaceToDepth" and attributes.get("mode", b"DCR") != b"DCR":
        return "with the channels first"
    if node.op_type == "ConvTranspose" and "output_shape" in attributes:
        return "with output_shape"
    return ""
