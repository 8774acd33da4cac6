"""Quantisation and its inverse."""

from __future__ import annotations

import numpy as np

from tests.helpers.onnx_forms.form import Form, data, number


def quantised() -> list[Form]:
    x, forms = data(2, 3, 4), []
    steps, zeros = np.float32([0.1, 0.2, 0.05]), np.uint8([3, 100, 250])
    one, zero = number(0.05), np.uint8(120)
    for opset in (10, 13, 19, 21, 23):
        forms.append(Form("QuantizeLinear", (x,), {}, opset, (one, zero)))
        forms.append(Form("QuantizeLinear", (x,), {}, opset, (one,)))
        forms.append(Form("DequantizeLinear", (np.uint8(x * 20 + 100),), {}, opset, (one, zero)))
        if opset > 10:
            forms.append(Form("QuantizeLinear", (x,), {}, opset, (steps, zeros)))
            forms.append(Form("QuantizeLinear", (data(2, 4, 3),), {"axis": 2}, opset, (steps, zeros)))
            forms.append(Form("QuantizeLinear", (data(2, 4, 3),), {"axis": -1}, opset, (steps, zeros)))
            forms.append(Form("DequantizeLinear", (np.uint8(x * 20 + 100),), {"axis": -2}, opset, (steps, zeros)))
            forms.append(Form("DequantizeLinear", (np.int8(x * 20),), {"axis": 1}, opset, (steps,)))
    forms += [
        Form("QuantizeLinear", (x,), {"output_dtype": 3}, 21, (one,)),
        Form("QuantizeLinear", (x,), {"saturate": 0}, 19, (one, zero)),
        Form("DequantizeLinear", (np.int32(x * 20),), {}, 13, (one,)),
        Form("DynamicQuantizeLinear", (x,), outputs=3),
    ]
    return forms
