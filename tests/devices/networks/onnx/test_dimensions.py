"""ONNX models with a dynamic dimension: its name, and what is computed of shapes within the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from devices.networks.frontend import load_network
from fleet_tune.base.errors import UserError
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.helpers.dynamic_networks import agree_at

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'


def saved(folder: Path, text: str) -> Path:
    file = folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), str(file))
    return file


SHAPES = {
    "count": """net (float[n, 3] x) => (float[a, b] y) <int64 zero = {0}, int64 one = {1}, int64[1] last = {1}> {
        s = Shape <start = 0, end = 1> (x)
        k = Squeeze (s)
        r = Range (zero, k, one)
        c = Cast <to = 1> (r)
        u = Unsqueeze (c, last)
        y = Add (x, u)
    }""",
    "count down": """net (float[n, 3] x) => (float[a] y) <int64 back = {-1}, int64 at = {0}> {
        s = Shape (x)
        k = Gather (s, at)
        m = Add (k, back)
        r = Range (m, back, back)
        y = Cast <to = 1> (r)
    }""",
    "inner rows": """net (float[n, 3] x) => (float[a, 3] y)
        <int64[1] one = {1}, int64[1] before = {-1}, int64[1] axis = {0}> { y = Slice (x, one, before, axis) }""",
    "rows of a table": """net (float[n, 3] x) => (float[a, b] y)
        <int64[1] none = {0}, int64[1] all = {9223372036854775807}, int64[1] axis = {-2}, float[16, 3] table =
        {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,
        41,42,43,44,45,46,47,48}> {
        s = Shape <start = 0, end = 1> (x)
        t = Slice (table, none, s, axis)
        rest = Slice (table, s, all, axis)
        m = ReduceSum (rest)
        z = Mul (x, t)
        y = Add (z, m)
    }""",
    "half": """net (float[n, 3] x) => (float[a, 3] y, float[b, 3] z)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] zero = {0}> {
        s = Shape <start = 0, end = 1> (x)
        t = Add (s, one)
        h = Div (t, two)
        y = Slice (x, zero, h, zero)
        r = Mod (s, two)
        o = Add (r, one)
        z = Slice (x, zero, o, zero)
    }""",
    "flattened": """net (float[n, 4, 2] x) => (float[a, b, c] y, float[d] z)
        <int64[1] same = {0}, int64[2] rest = {4, -1}> {
        target = Concat <axis = 0> (same, rest)
        p = Reshape (x, target)
        s = Shape (x)
        i = Constant <value = int64[2] {1, 0}> ()
        g = Gather (s, i)
        back = Constant <value = int64[1] {-1}> ()
        t = Concat <axis = 0> (g, back)
        q = Reshape (p, t)
        y = Add (q, q)
        k = Size (x)
        e = Constant <value = int64[1] {0}> ()
        w = Unsqueeze (k, e)
        z = Reshape (x, w)
    }""",
    "expanded": """net (float[n, 1] x) => (float[a, b] y) {
        s = Shape (x)
        back = Constant <value = int64[1] {-1}> ()
        i = Constant <value = int64[1] {0}> ()
        k = Gather (s, i)
        five = Constant <value = int64[1] {5}> ()
        t = Concat <axis = 0> (k, five)
        u = Shape (t)
        ones = ConstantOfShape <value = int64[1] {1}> (u)
        m = Mul (ones, back)
        c = Equal (t, m)
        w = Where (c, ones, t)
        e = Expand (x, w)
        o = ConstantOfShape <value = float[1] {2}> (t)
        y = Mul (e, o)
    }""",
    "masked": """net (float[n, 3] x) => (float[a, b] y) <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}> {
        s = Shape <start = 0, end = 1> (x)
        k = Squeeze (s, first)
        r = Range (zero, k, one)
        last = Constant <value = int64[1] {1}> ()
        q = Unsqueeze (r, last)
        m = Max (r, q)
        t = Shape (m)
        e = Expand (r, t)
        l = LessOrEqual (e, q)
        low = Constant <value = float {-1}> ()
        f = Cast <to = 1> (l)
        v = MatMul (f, x)
        y = Mul (v, low)
    }""",
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_what_is_computed_of_shapes_is_right_for_every_extent(name: str, tmp_path: Path) -> None:
    network = load_network(saved(tmp_path, SHAPES[name]), shapes=parse_shapes("n=2..9"))
    agree_at(network, range(2, 10))


def test_a_dimension_without_a_name_is_called_after_its_input(tmp_path: Path) -> None:
    file = saved(tmp_path, "net (float[?, 2] x) => (float[?, 2] y) { y = Relu (x) }")
    with pytest.raises(
        UserError, match=r"input 'x' has the dynamic dimension 0, 'x_0', from 0 up; .* --shapes \"x_0=1..32\""
    ):
        load_network(file)
    network = load_network(file, shapes=parse_shapes("x_0=1..4"))
    assert network.input_shapes == (("x_0", 2),)
    assert network.example_inputs[0].shape == (4, 2)
    assert str(network.relax_module["main"].params[0].ty.shape.values[0].name) == "x_0"


def test_a_name_that_is_no_word_becomes_one(tmp_path: Path) -> None:
    file = saved(tmp_path, "net (float[n, k] x, float[n, k] y) => (float[n, k] z) { z = Add (x, y) }")
    model = onnx.load(str(file))
    for value in (*model.graph.input, *model.graph.output):
        for dim, name in zip(value.type.tensor_type.shape.dim, ("past + 1", "past_1"), strict=True):
            dim.dim_param = name
    onnx.save(model, str(file))
    with pytest.raises(UserError, match=r'"past_1=1..32, past_1_2=1..32"'):
        load_network(file)
    network = load_network(file, shapes=parse_shapes("past_1=3, past_1_2=1..4"))
    assert network.input_shapes == ((3, "past_1_2"), (3, "past_1_2"))
    assert [array.shape for array in network.at({"past_1_2": 2}).framework_outputs()] == [(3, 2)]


def test_fixed_extents_are_those_of_a_fixed_network(tmp_path: Path) -> None:
    file = saved(tmp_path, SHAPES["flattened"])
    fixed = saved(tmp_path, SHAPES["flattened"].replace("float[n,", "float[3,"))
    expected = load_network(fixed)
    file = saved(tmp_path, SHAPES["flattened"])
    network = load_network(file, shapes=parse_shapes("n=3"))
    assert network.shapes is None
    assert network.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(network.example_inputs[0], expected.example_inputs[0])


def test_made_up_indices_fit_the_smallest_extent(tmp_path: Path) -> None:
    text = "net (float[n, 2] x, int64[4] at) => (float[4, 2] y) { y = Gather (x, at) }"
    network = load_network(saved(tmp_path, text), shapes=parse_shapes("n=1..8"))
    assert network.at({"n": 1}).example_inputs[1].tolist() == [0, 0, 0, 0]
    assert network.example_inputs[1].max() > 1


def test_values_between_have_the_shapes_of_the_example_inputs(tmp_path: Path) -> None:
    network = load_network(saved(tmp_path, SHAPES["flattened"]), shapes=parse_shapes("n=2..9")).at({"n": 5})
    values = [each for each in network.framework.intermediates() if each.name in ("p", "q")]
    (tmp_path / "between").mkdir()
    between = network.framework.returning(values, tmp_path / "between")
    assert between.shapes is None
    outputs = between.given(network.example_inputs, "").framework_outputs()
    assert [array.shape for array in outputs] == [(5, 4, 2), (4, 5, 2)]
