"""Signals, and operators of ONNX Runtime that ONNX does not have."""

from __future__ import annotations

import numpy as np

from tests.helpers.onnx_forms.form import Form, data, number, positive, whole


def others() -> list[Form]:
    own = "com.microsoft"
    x, y = data(2, 3, 8), data(2, 3, 8)
    return [
        Form("DFT", (data(2, 8, 1),), {"axis": 1}, 17),
        Form("DFT", (data(2, 8, 1),), {"axis": 1, "onesided": 1}, 17),
        Form("DFT", (data(2, 8, 2),), {"axis": 1, "inverse": 1}, 17),
        Form("DFT", (data(2, 8, 2),), {"axis": 1}, 17, (number(5, "int64"),)),
        Form("DFT", (data(2, 8, 2),), {}, 20, (None, number(1, "int64"))),
        Form("STFT", (data(1, 12, 1),), {"onesided": 1}, 17, (number(4, "int64"), positive(6))),
        Form("STFT", (data(1, 12, 1),), {"onesided": 0}, 17, (number(4, "int64"), positive(6))),
        Form("FastGelu", (x,), constants=(data(8),), domain=own),
        Form("BiasGelu", (x,), constants=(data(8),), domain=own),
        Form("Gelu", (x,), domain=own),
        Form("SkipLayerNormalization", (x, y), {"epsilon": 0.1}, constants=(positive(8), data(8), data(8)), domain=own),
        Form("SkipLayerNormalization", (x, y), {}, constants=(positive(8),), domain=own),
        Form("FusedMatMul", (data(3, 4), data(5, 4)), {"transB": 1, "alpha": 0.5}, domain=own),
        Form("QuickGelu", (x,), {"alpha": 1.2}, domain=own),
        Form("GridSample", (data(1, 2, 4, 5), np.tanh(data(1, 3, 3, 2))),
             {"mode": "bicubic", "align_corners": 1}, domain=own),
        Form("Pad", (data(2, 3),), {"mode": "reflect"}, constants=(whole(1, 1, 1, 1),), domain=own),
        Form("Trilu", (x,), {"upper": 0}, domain=own),
        Form("Range", (), {}, constants=(number(1), number(7), number(2)), domain=own),
        Form("Attention", (x,), {"num_heads": 2}, constants=(data(8, 24), data(24)), domain=own),
        Form("RotaryEmbedding", (data(1, 3, 8), whole([[0, 1, 2]])), {"num_heads": 2},
             constants=(data(9, 2), data(9, 2)), domain=own),
        Form("QuantizeLinear", (x,), {}, constants=(number(0.05), np.uint8(100)), domain=own),
        Form("DequantizeLinear", (np.uint8(x * 20 + 100),), {}, constants=(number(0.05), np.uint8(100)), domain=own),
        Form("MatMulIntegerToFloat", (np.uint8(data(3, 4) * 9 + 99), np.uint8(data(4, 5) * 9 + 99)), {},
             constants=(number(0.1), number(0.2)), domain=own),
        Form("EmbedLayerNormalization", (np.int32([[0, 3, 1]]), np.int32([[0, 1, 1]])), {"epsilon": 0.1},
             constants=(data(5, 8), data(4, 8), data(2, 8), positive(8), data(8)), outputs=2, domain=own),
        Form("EmbedLayerNormalization", (np.int32([[0, 3, 1]]), np.int32([[0, 1, 1]])), {},
             constants=(data(5, 8), data(4, 8), data(2, 8), positive(8), data(8), np.int32([[1, 1, 0]])), outputs=2,
             domain=own),
        Form("Attention", (x,), {"num_heads": 2, "unidirectional": 1}, constants=(data(8, 24), data(24)), domain=own),
        Form("Attention", (x,), {"num_heads": 2, "scale": 0.2}, constants=(data(8, 24), data(24)), domain=own),
        Form("Attention", (x,), {"num_heads": 2}, constants=(data(8, 24), data(24), np.int32([2, 3])), domain=own),
        Form("Attention", (x,), {"num_heads": 2}, constants=(data(8, 24), data(24), np.int32([[1, 1, 0], [1, 1, 1]])),
             domain=own),
        Form("Attention", (x,), {"num_heads": 2, "mask_filter_value": -3.0},
             constants=(data(8, 24), data(24), np.int32([[1, 1, 0], [1, 1, 1]])), domain=own),
        Form("Attention", (x,), {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}, constants=(data(8, 28), data(28)),
             domain=own),
        Form("SkipLayerNormalization", (x, y), {}, constants=(positive(8), data(8), data(8)), outputs=4, domain=own),
    ]  # fmt: skip
