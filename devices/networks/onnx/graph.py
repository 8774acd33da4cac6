"""ONNX models prepared for TVM: operators that it lacks are written with others, and unsupported ones are refused.

- Operators for which TVM has no translation, or a wrong one, become the functions that ONNX defines them by.
- Values that do not depend on the inputs are computed at import: shapes of fixed tensors, and values of constants.
- Types that no kernel computes in, and operators in modes that TVM silently ignores, are refused by name.
"""

from __future__ import annotations

import warnings

import onnx
import onnx.inliner
import onnx.version_converter
from onnx import TensorProto

from devices.networks.frontend_errors import OTHER_OPERATORS, unsupported_error
from devices.networks.onnx.folding import COMPUTED, CONTROL_FLOW, ONNX, RANDOM, folded, known, opset_of
from devices.networks.onnx.nodes import FINAL, GraphFacts, NodeWriter, OnnxNode, UnknownValueError
from devices.networks.onnx.operators import quantization
from devices.networks.onnx.operators.microsoft import REWRITES as MICROSOFT_REWRITES
from devices.networks.onnx.operators.narrow import in_wider_types
from devices.networks.onnx.operators.old_versions import REWRITES as OLD_REWRITES
from devices.networks.onnx.operators.rewrites import REWRITES, Rewrite
from devices.networks.onnx.operators.sequences import SEQUENCE_OPERATORS, without_sequences
from fleet_tune.base.errors import UnsupportedNetworkError

_MISREAD = frozenset({"Attention", "Mish", "Celu"})
"""Operators with a function in ONNX whose translation by TVM loses precision, has another type, or is meant for an
operator of the same name in another domain."""

_FUNCTIONS = "fleet_tune.functions"
"""Domain of functions that are about to be inlined."""

_OLDEST = 13

_FREE_CONSTANTS = 4

_ROUNDS = 16
"""Most rounds of functions, rewrites and folding. Each round may enable further ones."""

_DATA_DEPENDENT = frozenset({"NonZero", "Unique", "Compress"})


def prepared(model: onnx.ModelProto, where: str, expanded: frozenset[str] = frozenset()) -> onnx.ModelProto:
    """Return ``model``, checked by ONNX, in a form that TVM reads correctly. Raises :class:`UnsupportedNetworkError`.

    Args:
        model: the model.
        where: its name in errors.
        expanded: operators to be written as the functions by which ONNX defines them, although TVM has translations.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns about infinities in constants
        result = quantization.in_floats(model)
        result = onnx.inliner.inline_local_functions(result) if result.functions else result
        result = in_wider_types(folded(_named(_of_today(result, where))))
        for _ in range(_ROUNDS):
            result, written = _in_functions(folded(result), expanded)
            result, rewritten = _rewritten(result, REWRITES, where)
            result, fused = _rewritten(result, MICROSOFT_REWRITES, where, ("com.microsoft",))
            result, opened = without_sequences(result)
            if not (written or rewritten or fused or opened):
                break
    _refuse_unreadable(result, where)
    return result


def _refuse_unreadable(model: onnx.ModelProto, where: str) -> None:
    from devices.networks.onnx.converters import is_readable

    graph = known(model)
    for proto in model.graph.node:
        reason, next_step = _refused(OnnxNode(proto, graph), is_readable(proto.op_type))
        if reason:
            raise UnsupportedNetworkError(f"{where}: {said(proto)} {reason}", next_step)
    for name, kind in graph.types.items():
        if kind not in COMPUTED:
            type_name = TensorProto.DataType.Name(kind)
            raise UnsupportedNetworkError(
                f"{where}: {name!r} has the type {type_name}, which kernels do not have", "cast it to another type"
            )


def _of_today(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return ``model`` converted to the oldest version of the operators that is read directly. In earlier versions,
    some inputs were attributes."""
    if opset_of(model) >= _OLDEST:
        return model
    model = _with_free_constants(model)
    scans = [node for node in model.graph.node if node.op_type == "Scan"]
    if scans and opset_of(model) < 9:  # the conversion does not change Scan
        raise UnsupportedNetworkError(f"{where}: {said(scans[0])} has a batch, as before opset 9", OTHER_OPERATORS)
    model, _ = _rewritten(folded(model), OLD_REWRITES, where)
    try:
        return onnx.version_converter.convert_version(model, _OLDEST)
    except Exception:  # operators that do not convert are refused by name, if they are misread
        return model


def _with_free_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose constants need not be inputs. Before version 4 of the format they had to be, and the
    conversion to newer operators would refuse the constants that rewrites add."""
    if model.ir_version >= _FREE_CONSTANTS:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.ir_version = _FREE_CONSTANTS
    return result


def said(node: onnx.NodeProto) -> str:
    """Return a node in the user's words: its operator, and its name or its first output's."""
    domain = "" if node.domain in ONNX else f"{node.domain}."
    return f"the operator {domain}{node.op_type} ({node.name or next(iter(node.output), '')!r})"


def has_function(node: onnx.NodeProto) -> bool:
    """Return true if ONNX defines the operator by others."""
    if node.domain not in ONNX or not onnx.defs.has(node.op_type):
        return False
    schema = onnx.defs.get_schema(node.op_type)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose nodes all have names. A node without one is named after its first output."""
    if all(node.name for node in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        node.name = node.name or next((name for name in node.output if name), "")
    return result


def _rewritten(
    model: onnx.ModelProto, rewrites: dict[str, Rewrite], where: str, domains: tuple[str, ...] = ONNX
) -> tuple[onnx.ModelProto, bool]:
    """Return ``model`` with nodes rewritten by ``rewrites``, and true if any were. If a rewrite needs unknown values,
    its node stays."""
    if not any(node.op_type in rewrites for node in model.graph.node):
        return model, False
    graph, changed = known(model), False
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    for proto in model.graph.node:
        rewrite = rewrites.get(proto.op_type) if proto.domain in domains and proto.doc_string != FINAL else None
        write = NodeWriter(next(name for name in proto.output if name), graph.opset)
        try:
            outputs = rewrite(OnnxNode(proto, graph), write) if rewrite else None
        except UnknownValueError:
            outputs = None
        except Exception as error:
            raise unsupported_error(error, where, node=said(proto)) from error
        if outputs is None or len(outputs) < sum(bool(name) for name in proto.output):
            nodes.append(proto)
            continue
        changed = True
        nodes += write.nodes
        constants += write.constants
        for result, name in zip(outputs, proto.output, strict=False):
            if name:
                nodes.append(onnx.helper.make_node("Identity", [result], [name], name=f"{name}/is"))
    if changed:
        result_model = onnx.ModelProto()
        result_model.CopyFrom(model)
        del result_model.graph.node[:]
        result_model.graph.node.extend(nodes)
        result_model.graph.initializer.extend(constants)
        return result_model, True
    return model, False


def _in_functions(model: onnx.ModelProto, expanded: frozenset[str]) -> tuple[onnx.ModelProto, bool]:
    """Return ``model`` with nodes that TVM cannot read replaced by the functions that ONNX defines them by, if there
    are any. Return also true if a node was replaced."""
    from devices.networks.onnx.converters import is_readable

    graph = known(model)
    functions = {
        at: function
        for at, node in enumerate(model.graph.node)
        if node.domain not in ONNX
        or node.op_type in expanded
        or not (is_readable(node.op_type) or node.op_type in REWRITES)
        or _is_misread(node)
        for function in [_function_of(node, model, graph)]
        if function is not None
    }
    if not functions:
        return model, False
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for at, (function, attributes) in functions.items():
        node = result.graph.node[at]
        node.domain = function.domain = _FUNCTIONS
        node.op_type = function.name = f"{function.name}.{at}"
        node.attribute.extend(attributes)
        result.functions.append(function)
    result.opset_import.append(onnx.helper.make_opsetid(_FUNCTIONS, 1))
    inlined = onnx.inliner.inline_local_functions(result)
    left = [opset for opset in inlined.opset_import if opset.domain != _FUNCTIONS]
    del inlined.opset_import[:]
    inlined.opset_import.extend(left)
    return _named(inlined), True


def _function_of(
    node: onnx.NodeProto, model: onnx.ModelProto, graph: GraphFacts
) -> tuple[onnx.FunctionProto, list[onnx.AttributeProto]] | None:
    """Return the function that ONNX defines ``node`` by, in ``model``'s version of the operators, and the attributes
    that the node omits. None if there is no function."""
    version = next((opset.version for opset in model.opset_import if opset.domain == node.domain), graph.opset)
    if not onnx.defs.has(node.op_type, version, node.domain):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    given = {attribute.name for attribute in node.attribute}
    defaults = [
        attribute.default_value
        for name, attribute in schema.attributes.items()
        if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED
    ]
    whole = onnx.NodeProto()
    whole.CopyFrom(node)
    whole.attribute.extend(defaults)
    serialized = [
        onnx.helper.make_tensor_type_proto(graph.types[name], graph.shapes.get(name)).SerializeToString()
        if name in graph.types
        else b""
        for name in node.input
    ]
    text = b""
    if schema.has_function:
        versions = [v for v in schema.all_function_opset_versions if v <= version]
        text = schema.get_function_with_opset_version(max(versions)) if versions else b""
    elif schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        if versions and all(serialized[at] or not name for at, name in enumerate(node.input)):
            text = schema.get_context_dependent_function_with_opset_version(
                max(versions), whole.SerializeToString(), serialized
            )
    if not text:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    for opset in function.opset_import:
        opset.version = graph.opset if opset.domain in ONNX else opset.version
    return function, defaults


def _is_misread(node: onnx.NodeProto) -> bool:
    """Return true for operators that TVM misreads: :data:`_MISREAD`, layer norms with their mean or deviation as
    outputs (TVM gives zeros), and RMS norms whose scale has several dimensions."""
    if node.op_type == "LayerNormalization":
        return sum(bool(name) for name in node.output) > 1
    axes = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
    return node.op_type in _MISREAD or (node.op_type == "RMSNormalization" and axes not in ([], [-1]))


def _refused(node: OnnxNode, readable: bool) -> tuple[str, str]:
    """Return the reason why ``node`` cannot be imported, and the next step. Both are empty if it can.

    ``readable``: true if TVM reads operators of its type, even if TVM's translation may compute something else.
    """
    kind, attributes = node.proto.op_type, node.attributes
    if node.proto.domain not in (*ONNX, "com.microsoft"):
        return f"is of the domain {node.proto.domain}", OTHER_OPERATORS
    if kind in CONTROL_FLOW:
        return "has a course that depends on data", "export the network with a fixed number of turns, or without it"
    if kind == "NonMaxSuppression":
        return "selects a number of boxes that depends on data", (
            f"end the network at its boxes {node.input(0)!r} and scores {node.input(1)!r} (onnx.utils.extract_model), "
            "and select among them after it"
        )
    if kind in _DATA_DEPENDENT:
        return "has an output whose shape depends on data", "leave it to what runs before or after the network"
    if kind in SEQUENCE_OPERATORS:
        return "makes or reads a sequence whose length or places depend on data, or that is an output", "use tensors"
    if kind in RANDOM:
        return "gives random results", "make them inputs of the network"
    if kind == "Dropout" or (kind == "BatchNormalization" and attributes.get("training_mode")):
        return "runs as in training", "export the network for inference: call eval() before"
    if kind == "TopK" and node.graph.types.get(node.input(0)) == TensorProto.UINT64:
        return "sorts numbers of the type UINT64", "cast them to another type"
    if kind == "Resize" and attributes.get("antialias"):
        return "smooths integers, or in an unknown mode (antialias)", "cast to float, and use linear or cubic"
    if kind == "MaxUnpool" and node.has(2):
        return "takes the shape of its output as an input", "leave that input out: the shape follows from the kernel"
    if kind == "RoiAlign" and attributes.get("mode") == "max":
        return "takes the maximum of samples", OTHER_OPERATORS
    if not readable and kind in (*REWRITES, *MICROSOFT_REWRITES):
        return "has an unsupported form, or needs a value that is not known before the network runs", (
            "give shapes and settings as constants, or " + OTHER_OPERATORS
        )
    if not readable:
        return "is not supported", OTHER_OPERATORS
    return "", ""
