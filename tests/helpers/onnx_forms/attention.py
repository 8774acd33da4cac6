"""Attention and rotary embeddings."""

from __future__ import annotations

import numpy as np

from tests.helpers.onnx_forms.form import Form, data


def attention() -> list[Form]:
    q, k, v = data(1, 2, 3, 4), data(1, 2, 5, 4), data(1, 2, 5, 6)
    flat = (data(1, 3, 8), data(1, 5, 8), data(1, 5, 12))
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    mask = np.where(data(3, 5) > 0.5, np.float32(-1e4), np.float32(0))
    return [
        Form("Attention", (q, k, v), {}, 23),
        Form("Attention", (q, k, v), {"scale": 0.3}, 23),
        Form("Attention", (q, k, v), {"is_causal": 1}, 23),
        Form("Attention", (q, k, v), {"softcap": 2.0}, 23),
        Form("Attention", (q, k, v, mask), {}, 23),
        Form("Attention", flat, heads, 23),
        Form("Attention", (data(1, 3, 16), data(1, 5, 8), data(1, 5, 12)), {"q_num_heads": 4, "kv_num_heads": 2}, 23),
        Form("Attention", (q, k, v), {"softmax_precision": 1}, 23),
        Form("Attention", (q, k, v, mask, None, None), {"qk_matmul_output_mode": 0}, 23, (), 4),
        Form("RotaryEmbedding", (data(1, 2, 3, 4), data(1, 3, 2), data(1, 3, 2)), {}, 23),
        Form("RotaryEmbedding", (data(1, 2, 3, 4), data(1, 3, 2), data(1, 3, 2)), {"interleaved": 1}, 23),
        Form("RotaryEmbedding", (data(1, 2, 3, 4), data(1, 3, 1), data(1, 3, 1)), {"rotary_embedding_dim": 2}, 23),
        Form("RotaryEmbedding", (data(1, 3, 8), data(1, 3, 2), data(1, 3, 2)), {"num_heads": 2}, 23),
    ]
