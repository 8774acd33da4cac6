"""Gathering, scattering, slicing, and changes of shape."""

from __future__ import annotations

import numpy as np

from tests.helpers.onnx_forms.form import Form, data, number, positive, whole


def indexing() -> list[Form]:
    x, forms = data(4, 5, 6), []
    forms += [Form("Gather", (x, whole([[0, -1], [2, 1]])), {"axis": axis}) for axis in (0, 1, 2, -1)] + [
        Form("Gather", (x, whole(0, 2)))
    ]
    forms += [
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 4)), {"axis": 2}),
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 3)), {"axis": 2}),
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 3)), {"axis": 1}),
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 3))),
        Form("GatherND", (x, whole([[0, 1], [3, -1]]))),
        Form("GatherND", (x, whole([[[0], [1]], [[3], [2]], [[0], [0]], [[1], [4]]])), {"batch_dims": 1}),
        Form("GatherND", (x, whole([[[[0], [1]]] * 5] * 4)), {"batch_dims": 2}),
    ]
    for opset in (11, 13, 16, 18):
        for axis in (0, 1, 2, -2):
            rows = np.random.default_rng(axis + 3).permuted(np.tile(np.arange(4)[:, None, None], (1, 2, 3)), axis=0)
            index = np.moveaxis(rows, 0, axis).copy()
            forms.append(Form("ScatterElements", (x, index, data(*index.shape)), {"axis": axis}, opset))
    rows = np.tile(np.arange(4)[:, None, None], (1, 5, 6))
    forms += [
        Form("ScatterElements", (x, rows, data(4, 5, 6))),
        Form("ScatterElements", (x, rows - 4, data(4, 5, 6))),
        Form("Scatter", (x, rows[:, :2, :3].copy(), data(4, 2, 3)), {}, 9),
        Form("Scatter", (x, np.tile(np.arange(5)[None, :, None], (2, 1, 3)), data(2, 5, 3)), {"axis": 1}, 9),
    ]
    double = whole([[[1, 1, 3]] * 2] * 2)
    for reduction in ("add", "mul", "max", "min"):
        opset = 16 if reduction in ("add", "mul") else 18
        for axis in (0, 1, 2):
            index = np.clip(double, 0, x.shape[axis] - 1)
            forms.append(
                Form("ScatterElements", (x, index, data(2, 2, 3)), {"axis": axis, "reduction": reduction}, opset)
            )
        forms.append(
            Form("ScatterND", (x, whole([[0, 1], [3, -1], [0, 1]]), data(3, 6)), {"reduction": reduction}, opset)
        )
    forms += [
        Form("ScatterND", (x, whole([[0, 1], [3, -1]]), data(2, 6))),
        Form("ScatterND", (x, whole([[[0], [2]]]), data(1, 2, 5, 6)), {}, 13),
        Form("ScatterND", (x, whole([[0, 1, 5], [3, 4, 0]]), data(2)), {"reduction": "none"}),
        Form("Slice", (x,), {}, constants=(whole(1, 0), whole(3, 5))),
        Form("Slice", (x,), {}, constants=(whole(1), whole(-1), whole(2))),
        Form("Slice", (x,), {}, constants=(whole(-1, 4), whole(-100, 0), whole(0, 2), whole(-1, -2))),
        Form("Slice", (x,), {}, constants=(whole(0), whole(2**62), whole(1), whole(2))),
        Form("Slice", (x,), {"axes": [1, 2], "starts": [1, -4], "ends": [4, 100]}, 9),
        Form("Slice", (x,), {"starts": [1, 1], "ends": [3, -1]}, 9),
        Form("Split", (x,), {"axis": 1}, 9, (), 5),
        Form("Split", (x,), {"axis": 2, "split": [1, 2, 3]}, 9, (), 3),
        Form("Split", (x,), {}, 9, (), 2),
        Form("Split", (x,), {"axis": -1}, 13, (whole(1, 2, 3),), 3),
        Form("Split", (x,), {"axis": 2}, 13, (), 3),
        Form("Split", (x,), {"axis": 2, "num_outputs": 4}, 18, (), 4),
        Form("Split", (x,), {"num_outputs": 2}, 18, (), 2),
        Form("Concat", (x, data(4, 2, 6)), {"axis": 1}),
        Form("Concat", (x, data(4, 5, 1)), {"axis": -1}),
        Form("Concat", (x, data(4, 2, 6)), {"axis": 1}, 4),
        Form("Concat", (data(2, 3), data(2, 3)), {}, 1, means=Form("Concat", (data(2, 3), data(2, 3)), {"axis": 1})),
        Form("Transpose", (x,)),
        Form("Transpose", (x,), {"perm": [1, 2, 0]}),
        Form("Flatten", (x,)),
        *(Form("Flatten", (x,), {"axis": axis}) for axis in (0, 2, 3, -1, -2)),
        Form("Flatten", (x,), {"axis": 2}, 9),
        Form("Reshape", (x,), {}, constants=(whole(5, -1),)),
        Form("Reshape", (x,), {}, constants=(whole(0, 0, 3, 2),)),
        Form("Reshape", (x,), {"allowzero": 1}, constants=(whole(5, 24),)),
        Form("Reshape", (x,), {"shape": [5, -1]}, 1),
        Form("Squeeze", (data(1, 3, 1, 2),)),
        Form("Squeeze", (data(1, 3, 1, 2),), {}, constants=(whole(-2),)),
        Form("Squeeze", (data(1, 3, 1, 2),), {"axes": [0]}, 11),
        Form("Squeeze", (data(1, 3, 1, 2),), {}, 11),
        Form("Unsqueeze", (x,), {}, constants=(whole(0, -1),)),
        Form("Unsqueeze", (x,), {"axes": [1, 3]}, 11),
        Form("Expand", (data(3, 1),), {}, constants=(whole(2, 3, 4),)),
        Form("Tile", (x,), {}, constants=(whole(1, 2, 3),)),
        Form("Tile", (x,), {}, 1, (number(2), number(1)), means=Form("Tile", (x, whole(1, 2, 1)))),
        Form("Cast", (x,), {"to": "INT32"}, 1, means=Form("Cast", (x,), {"to": 6})),
        Form("BatchNormalization", (data(2, 4, 3),), {"spatial": 0}, 7,
             (positive(4, 3), data(4, 3), data(4, 3), positive(4, 3))),
        Form("Trilu", (x,)),
        Form("Trilu", (x,), {"upper": 0}),
        Form("Trilu", (x,), {"upper": 0}, constants=(number(1, "int64"),)),
        Form("Trilu", (x,), {"upper": 1}, constants=(number(-2, "int64"),)),
        Form("EyeLike", (data(3, 4),), {"k": 1}),
        Form("CumProd", (x,), {"exclusive": 1}, 26, (number(1, "int64"),)),
        Form("CumProd", (x,), {"reverse": 1}, 26, (number(0, "int64"),)),
        Form("BitCast", (x,), {"to": 6}, 26),
        Form("OneHot", (whole(0, 2, -1),), {}, constants=(number(3, "int64"), np.float32([0.5, 2]))),
        Form("OneHot", (whole([[0, 2, -1]]),), {"axis": 0}, constants=(number(3, "int64"), np.float32([0.5, 2]))),
        Form("OneHot", (whole([[0, 2, -1]]),), {"axis": 1}, 9, (number(3, "int64"), np.float32([0.5, 2]))),
        Form("ReverseSequence", (data(4, 3), whole(1, 3, 4)), {}),
        Form("ReverseSequence", (data(3, 4), whole(1, 3, 4)), {"batch_axis": 0, "time_axis": 1}),
        Form("TensorScatter", (data(2, 5, 3), data(2, 2, 3)), {"axis": 1}, 24, (whole(1, 3),)),
        Form("TensorScatter", (data(2, 5, 3), data(2, 2, 3)), {"axis": 1, "mode": "circular"}, 24, (whole(1, 4),)),
    ]  # fmt: skip
    inside = np.float32(1.5)
    for mode in ("constant", "reflect", "edge"):
        for opset in (11, 13, 18, 21):
            forms.append(Form("Pad", (x,), {"mode": mode}, opset, (whole(1, 0, 2, 0, 3, 1), inside)))
        forms.append(Form("Pad", (x,), {"mode": mode, "pads": [1, 0, 2, 0, 3, 1], "value": 1.5}, 2))
        few = (whole(1, 2, 3, 2), None, whole(-1, 0)) if mode == "reflect" else (whole(1, 2, 3, 4), inside, whole(2, 0))
        forms.append(Form("Pad", (x,), {"mode": mode}, 18, few))
        forms.append(Form("Pad", (x,), {"mode": mode}, 18, (whole(-1, 0, 2, 0, -2, 1), inside)))
    forms += [
        Form("Pad", (x,), {"mode": "wrap"}, 19, (whole(1, 0, 2, 0, 3, 1),)),
        Form("Pad", (x,), {}, 18, (whole(1, 0, 2, 0, 3, 1),)),
        Form("Pad", (x,), {"paddings": [1, 0, 2, 0, 3, 1], "value": 2.0}, 1),
    ]
    return forms
