"""The small Llama: its two halves agree, and both can be tuned for a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.networks import llama
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from fleet_tune.base.precision import Precision
from tests.helpers.gpu_target import H200

pytest.importorskip("transformers")


def test_a_step_of_decoding_computes_the_last_token_of_the_prefill() -> None:
    from transformers.cache_utils import DynamicCache

    network, (ids,) = llama.tiny_prefill()
    prefill: Any = network
    before = ids.shape[1] - 1
    with torch.inference_mode():
        whole = prefill(ids)
        cache = DynamicCache()
        prefill.llama(input_ids=ids[:, :before], past_key_values=cache, use_cache=True)
        keys, values = (torch.stack([getattr(layer, of) for layer in cache.layers]) for of in ("keys", "values"))
        step = llama._DecodeStep(prefill.llama, before)(ids[:, before:], keys, values)
        own_mask = prefill.llama(input_ids=ids, use_cache=False)[0]
    assert torch.allclose(step, whole[:, before:], atol=1e-5)
    assert torch.allclose(own_mask, whole, atol=1e-5)


@pytest.mark.parametrize("precision", [None, Precision.FP16])
@pytest.mark.parametrize("make", [llama.tiny_prefill, llama.tiny_decode])
def test_it_becomes_tasks_for_a_gpu(make: Any, precision: Precision | None) -> None:
    tasks = import_network(load_network(make()).in_precision(precision), H200).tasks
    assert len([task for task in tasks if task.workload.name.startswith("matmul")]) >= 5
