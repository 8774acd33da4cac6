"""Every attribute of ONNX's operators, varied and compared with ONNX Runtime."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from devices.builds.executables import compile_host
from devices.networks.checks.comparison import compare
from devices.networks.frontend import load_network
from devices.networks.onnx.converters import is_readable
from devices.networks.onnx.operators.rewrites import REWRITES
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UnsupportedNetworkError
from tests.helpers.onnx_forms import FORMS
from tests.helpers.onnx_forms.form import Array, Form

CPU = DeviceClass("cpu", resolve_target("native", 2))
CLOSE = 1e-4
_TOGETHER = 60  # forms in one network: enough for a fast test, few enough for one library
_PARTS = 16  # of the exhaustive test: those of one opset, which share networks, are beside one another

REFUSED = {
    "BatchNormalization-7": "statistics for each element",
    "Cast-1": "a type by its name",
    "Det-22": "a determinant",
    "GroupNormalization-18": "deprecated by ONNX itself",
    "Pad-1": "another name of the padding",
    "Tile-1": "one axis as floats",
    "com.microsoft": "",
}
"""Forms that are refused whole, by the beginning of their names, with what is in them."""

MENDED = (
    "Add-6", "Equal-6", "Hardmax-11", "LpPool-22 [1, 4, 9, 10]", "MaxUnpool", "PRelu-6", "ReduceLogSum-18",
    "ReduceSumSquare-18", "Resize-19 [2, 6, 7, 3]", "RoiAlign-16", "Scatter-9", "ScatterElements-16",
)  # fmt: skip
"""Forms that TVM or onnx's conversion misreads, by the beginning of their names: compared in every run of the tests."""

UNVARIED = {
    "Cast": {"round_mode", "saturate"},  # of types of 8 bits, which are refused
    "CastLike": {"round_mode", "saturate"},
    "QuantizeLinear": {"block_size", "precision"},  # blocks are constants; precision is that of the computation
    "DequantizeLinear": {"block_size", "output_dtype"},
    "Constant": set(onnx.defs.get_schema("Constant").attributes),  # computed by ONNX's evaluator
    "ConstantOfShape": {"value"},
    "Attention": {"left_window_size", "right_window_size"},  # written as ONNX's function, see tests/zoo/onnx_nodes.py
    "BatchNormalization": {"training_mode"},  # refused
    "EyeLike": {"dtype"},
    "Shape": {"end", "start"},
    "Range": {"stash_type"},
    "Resize": {"antialias"},  # refused
    "NonMaxSuppression": {"center_point_box"},  # refused
    "Unique": {"axis", "sorted"},
    "Compress": {"axis"},
    "SequenceEmpty": {"dtype"},
    "Optional": {"type"},
    "ConcatFromSequence": {"axis", "new_axis"},
    "SplitToSequence": {"axis", "keepdims"},
}
"""Attributes that no form varies, by operator: refused, of no influence on results, or the subject of other tests."""


def _network(forms: Iterable[tuple[str, Form]], types: dict[str, Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of all forms, each of its own inputs, and the values of these. ``types``: examples of its outputs."""
    nodes, inputs, constants, outputs, opset = [], dict[str, Array](), [], [], 1
    for tag, form in forms:
        names = []
        for at, value in enumerate((*form.inputs, *form.constants)):
            names.append("" if value is None else f"{tag}.{at}")
            if value is None:
                continue
            if at < len(form.inputs):
                inputs[names[-1]] = value
            else:
                constants.append(numpy_helper.from_array(value, names[-1]))
        results = [f"{tag}:{at}" for at in range(form.outputs)]
        nodes.append(helper.make_node(form.operator, names, results, tag, domain=form.domain, **form.attributes))
        outputs += [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(types[name].dtype), types[name].shape)
            if name in types
            else helper.make_empty_tensor_value_info(name)
            for name in results
        ]
        opset = form.opset
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "net", given, outputs, constants)
    return helper.make_model(graph, opset_imports=versions, ir_version=11 if opset > 22 else 10), inputs


def _expected(form: Form) -> list[Array]:
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    proto, inputs = _network([("n", form.means or form)], {})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(value) for value in session.run(None, inputs)]
    except Exception:  # a version or form that it does not know
        return [np.asarray(value) for value in ReferenceEvaluator(proto).run(None, inputs)]


def _wrong(forms: Iterable[Form], folder: Path) -> tuple[list[str], list[str]]:
    """The forms whose results differ from ONNX Runtime's, and those that are refused, in words."""
    file = folder / "net.onnx"
    read = collections.defaultdict[int, list[tuple[str, Form, list[Array]]]](list)
    refused, wrong = [], []
    for at, form in enumerate(forms):
        expected = _expected(form)
        proto, _ = _network([(f"n{at}", form)], {f"n{at}:{i}": value for i, value in enumerate(expected)})
        onnx.save(proto, str(file))
        try:
            load_network(file)
        except UnsupportedNetworkError as error:
            refused.append(f"{form}: {error}")
            continue
        read[form.opset].append((f"n{at}", form, expected))
    for group in read.values():
        for first in range(0, len(group), _TOGETHER):
            part = group[first : first + _TOGETHER]
            types = {f"{tag}:{i}": value for tag, _, expected in part for i, value in enumerate(expected)}
            proto, inputs = _network([(tag, form) for tag, form, _ in part], types)
            onnx.save(proto, str(file))
            network = load_network(file).given(tuple(inputs.values()), "the test")
            ours = list(compile_host(import_network(network, CPU).module)(*network.example_inputs))
            for _, form, expected in part:
                mine, ours = ours[: len(expected)], ours[len(expected) :]
                error = compare(tuple(mine), tuple(expected))[1]
                if not error < CLOSE:
                    wrong.append(f"{form}: {error:.2g}")
    return wrong, refused


def test_forms_that_tvm_misreads_are_as_in_onnx_runtime(tmp_path: Path) -> None:
    forms = [form for form in FORMS if str(form).startswith(MENDED)]
    wrong, refused = _wrong(forms[::2], tmp_path)
    assert not wrong
    assert not [line for line in refused if "maximum of samples" not in line and "shape of its output" not in line]


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(_PARTS))
def test_every_form_is_as_in_onnx_runtime(part: int, tmp_path: Path) -> None:
    outside = (*REFUSED, "Bernoulli", "LRN-22 [2, 4, 6]")  # ONNX has no value to compare them with
    forms = sorted((form for form in FORMS if not str(form).startswith(outside)), key=lambda form: form.opset)
    wrong, refused = _wrong(forms[part * len(forms) // _PARTS : (part + 1) * len(forms) // _PARTS], tmp_path)
    assert not wrong
    allowed = ("Bernoulli", "GRU", "LRN", "LSTM", "LayerNormalization", "MaxUnpool", "RoiAlign")
    assert not [line for line in refused if not line.startswith(allowed)]


def test_every_attribute_that_tvm_may_read_past_is_varied() -> None:
    varied = collections.defaultdict[str, set[str]](set)
    for form in FORMS:
        varied[form.operator] |= form.attributes.keys()
    for schema in onnx.defs.get_all_schemas():
        name = schema.name
        if schema.domain or schema.deprecated or not (is_readable(name) or name in REWRITES):
            continue
        graphs = {each for each, of in schema.attributes.items() if of.type == onnx.defs.OpSchema.AttrType.GRAPH}
        if graphs:  # control flow, see test_graph.py
            continue
        left = schema.attributes.keys() - varied[name] - UNVARIED.get(name, set())
        assert not left, f"{name}: no form varies {sorted(left)}"
