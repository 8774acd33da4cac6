"""Reductions, softmax, places of extremes, sums along an axis, and sorts."""

from __future__ import annotations

import numpy as np

from tests.helpers.onnx_forms.form import Form, data, number, positive, whole


def reductions() -> list[Form]:
    forms: list[Form] = []
    for name in ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]:
        operator, late = f"Reduce{name}", 13 if name == "Sum" else 18
        x = positive(2, 3, 4) if name == "LogSum" else data(2, 3, 4)
        for opset in (7, 11, 12):
            forms.append(Form(operator, (x,), {"axes": [1]}, opset))
        forms += [
            Form(operator, (x,), {}, 11),
            Form(operator, (x,), {"keepdims": 0}, 11),
            Form(operator, (x,), {"axes": [0, -1], "keepdims": 0}, 11),
            Form(operator, (x,), {}, late),
            Form(operator, (x,), {"keepdims": 0}, late),
            Form(operator, (x,), {"keepdims": 0}, late, (whole(-1),)),
            Form(operator, (x,), {}, late, (whole(0, 2),)),
            Form(operator, (x,), {"noop_with_empty_axes": 1}, late),
            Form(operator, (x,), {"noop_with_empty_axes": 1}, late, (whole([]),)),
            Form(operator, (x,), {}, late, (whole([]),)),
            Form(operator, (x,), {"noop_with_empty_axes": 1, "keepdims": 0}, late, (whole(1),)),
        ]
        if name != "Sum":
            forms.append(Form(operator, (x,), {"axes": [1], "keepdims": 0}, 13))
    ties = np.round(data(2, 3, 4) * 1.5)
    for operator in ("ArgMax", "ArgMin"):
        forms += [
            Form(operator, (x,)),
            Form(operator, (x,), {"axis": -1}),
            Form(operator, (x,), {"axis": 1, "keepdims": 0}),
            Form(operator, (ties,), {"axis": 1, "select_last_index": 1}),
            Form(operator, (ties,), {"axis": 1, "select_last_index": 0}),
            Form(operator, (ties,), {"axis": 1}, 7),
            Form(operator, (ties,), {"axis": 1, "keepdims": 0, "select_last_index": 1}, 12),
        ]
    y = data(2, 3, 4)
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        forms += [Form(operator, (y,), {"axis": axis}) for axis in (0, 1, 2, -1)] + [Form(operator, (y,))]
        forms += [Form(operator, (y,), {"axis": axis}, 11) for axis in (0, 1, 2, -1, -2)] + [
            Form(operator, (y,), {}, 11)
        ]
        forms += [Form(operator, (y,), {"axis": axis}, 7) for axis in (0, 1, 2)] + [Form(operator, (y,), {}, 7)]
        forms += [Form(operator, (ties,), {"axis": 1}), Form(operator, (ties,), {"axis": 1}, 9)]
    forms += [
        Form("CumSum", (y,), {}, constants=(number(1, "int64"),)),
        Form("CumSum", (y,), {"exclusive": 1}, constants=(number(-1, "int64"),)),
        Form("CumSum", (y,), {"reverse": 1}, constants=(number(0, "int64"),)),
        Form("CumSum", (y,), {"reverse": 1, "exclusive": 1}, 11, (number(2, "int32"),)),
        Form("TopK", (y,), {}, constants=(whole(2),), outputs=2),
        Form("TopK", (y,), {"axis": 1}, constants=(whole(2),), outputs=2),
        Form("TopK", (y,), {"largest": 0}, constants=(whole(2),), outputs=2),
        Form("TopK", (ties,), {"axis": -1, "sorted": 1}, constants=(whole(3),), outputs=2),
        Form("TopK", (y,), {"axis": 1}, 10, (whole(2),), 2),
        Form("TopK", (y,), {"axis": 1, "k": 2}, 9, (), 2),
    ]
    return forms
