"""Operators that work element by element."""

from __future__ import annotations

import numpy as np

from tests.helpers.onnx_forms.form import LATEST, Form, data, number, positive, whole


def element_wise() -> list[Form]:
    x, p = data(2, 3, 4), positive(2, 3, 4)
    plain = "Abs Atan Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish Identity LeakyRelu Mish Neg Reciprocal Relu"
    plain += " Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh Gelu ThresholdedRelu Celu IsNaN IsInf Shrink"
    forms = [Form(name, (x,)) for name in plain.split()]
    forms += [Form(name, (np.tanh(x) * np.float32(0.9),)) for name in ("Acos", "Asin", "Atanh")]
    forms += [Form("Acosh", (p + 1,)), Form("Asinh", (x,)), Form("Log", (p,)), Form("Sqrt", (p,))]
    forms += [
        Form("Elu", (x,), {"alpha": 0.5}),
        Form("Celu", (x,), {"alpha": 0.5}),
        Form("Gelu", (x,), {"approximate": "tanh"}),
        Form("HardSigmoid", (x,), {"alpha": 0.4}),
        Form("HardSigmoid", (x,), {"beta": 0.3}),
        Form("LeakyRelu", (x,), {"alpha": 0.3}),
        Form("Selu", (x,), {"alpha": 1.2}),
        Form("Selu", (x,), {"gamma": 0.7}),
        Form("Shrink", (x,), {"bias": 0.3}),
        Form("Shrink", (x,), {"lambd": 0.9, "bias": 0.2}),
        Form("ThresholdedRelu", (x,), {"alpha": 0.4}),
        Form("Swish", (x,), {"alpha": 1.5}, 24),
        Form(
            "IsInf", (np.where(x > 1, np.inf, np.where(x < -1, -np.inf, x)).astype("float32"),), {"detect_negative": 0}
        ),
        Form(
            "IsInf", (np.where(x > 1, np.inf, np.where(x < -1, -np.inf, x)).astype("float32"),), {"detect_positive": 0}
        ),
        Form("Clip", (x,), {"min": -0.5, "max": 0.8}, 6),
        Form("Clip", (x,), {"max": 0.8}, 6),
        Form("Clip", (x,), {"min": -0.5}, 6),
        Form("Clip", (x,), {}, 6),
        Form("Clip", (x,), constants=(number(-0.5),)),
        Form("Clip", (x,), constants=(None, number(0.8))),
        Form("Clip", (x, number(-0.5), number(0.8))),
        Form("Clip", (x,), constants=(number(0.8), number(-0.5))),
        Form("PRelu", (x,), constants=(data(4),)),
        Form("PRelu", (x,), constants=(data(3, 1),)),
        Form("PRelu", (x, data(2, 3, 4) / 2)),
        Form("PRelu", (x,), constants=(data(3),), opset=6),
        Form("Where", (x > 0, x, p)),
        Form("Where", (x[:1] > 0, x, p[:, :1])),
        Form("Cast", (x * 100,), {"to": 6}),
        Form("Cast", (x * 100,), {"to": 3}),
        Form("Cast", (x,), {"to": 9}),
        Form("Cast", (x,), {"to": 10}),
        Form("Cast", (x,), {"to": 11}),
        Form("CastLike", (x, whole(1))),
    ]
    for name in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "Pow"]:
        forms.append(Form(name, (p, positive(3, 1))))
    for name in ["Max", "Min", "Mean", "Sum"]:
        forms += [Form(name, (x,)), Form(name, (x, data(4), data(3, 1)))]
        forms.append(Form(name, (x, p), opset=6))
    for name in ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]:
        forms.append(Form(name, (x, data(3, 1)), opset=16))
        forms.append(Form(name, (x, data(2, 3, 4)), opset=16))
    for name in [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Less",
        "Greater",
        "And",
        "Or",
        "Xor",
    ]:  # an axis that broadcasts, as before opset 7
        of = (lambda value: value > 1) if name in ("And", "Or", "Xor") else np.asarray
        new = LATEST if name not in ("Less", "Greater") else 9
        for other, axis, seen in (((3,), 1, (3, 1)), ((4,), None, (4,)), ((2, 3), 0, (2, 3, 1)), ((2,), 0, (2, 1, 1))):
            left, right = of(p), of(positive(*other))
            settings = {"broadcast": 1, **({} if axis is None else {"axis": axis})}
            means = Form(name, (left, right.reshape(seen)), {}, new)
            forms.append(Form(name, (left, right), settings, 6, means=means))
    both = (np.int32([[1, 2], [3, 4]]), np.int32([2, 3]))
    forms.append(Form("Equal", both, {"broadcast": 1, "axis": 0}, 6, means=Form("Equal", (both[0], both[1][:, None]))))
    for name in ["And", "Or", "Xor"]:
        forms.append(Form(name, (x > 0, p > 1)))
    forms.append(Form("Not", (x > 0,)))
    a, b = whole([[7, -7, 5]]), whole([[3, 3, -3]])
    forms += [
        Form("Mod", (a, b)),
        Form("Mod", (a, b), {"fmod": 1}),
        Form("Mod", (x, p), {"fmod": 1}),
        Form("Div", (a, b)),
        Form("Pow", (a.astype("float32"), whole([2, 3, 2]))),
        Form("BitShift", (np.uint8([[7, 9, 200]]), np.uint8([[1, 2, 3]])), {"direction": "LEFT"}),
        Form("BitShift", (np.uint8([[7, 9, 200]]), np.uint8([[1, 2, 3]])), {"direction": "RIGHT"}),
        Form("Round", (np.float32([[0.5, 1.5, 2.5, -0.5, -1.5, 0.4]]),)),
        Form("Dropout", (x,)),
        Form("Dropout", (x,), {"ratio": 0.7}, 7),
        Form("Dropout", (x,), {"ratio": 0.7, "is_test": 1}, 6, means=Form("Identity", (x,))),
        Form("Dropout", (x,), {"seed": 3}, constants=(number(0.3),)),
    ]
    forms += [Form(f"Bitwise{name}", (a, b)) for name in ("And", "Or", "Xor")] + [Form("BitwiseNot", (a,))]
    return forms
