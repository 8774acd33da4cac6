"""Steps of decoding: attention of one token over a cache that grows, against torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.dynamic import kernels as dynamic_kernels
from devices.networks.frontend import load_network
from devices.networks.network import Network
from devices.networks.tasks.lowering import compare, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))
PASTS = (0, 1, 2, 14, 15, 16, 17, 63, 64, 100)


class Layer(nn.Module):
    """Attention of a few tokens over a cache of keys and values, (1, shared, past, size), that grows by them."""

    def __init__(self, heads: int, shared: int, size: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, size
        self.query, self.result = (nn.Linear(heads * size, heads * size) for _ in range(2))
        self.key, self.value = (nn.Linear(heads * size, shared * size) for _ in range(2))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        rows = x.shape[1]

        def heads(layer: nn.Module, count: int) -> Tensor:
            return layer(x).view(1, rows, count, self.size).transpose(1, 2)

        keys = torch.cat([keys, heads(self.key, self.shared)], 2)
        values = torch.cat([values, heads(self.value, self.shared)], 2)
        query = heads(self.query, self.heads)
        grouped = self.shared < self.heads
        attended = scaled_dot_product_attention(query, keys, values, mask, enable_gqa=grouped)
        return x + self.result(attended.transpose(1, 2).reshape(1, rows, -1)), keys, values


class Step(nn.Module):
    """Two layers."""

    def __init__(self, heads: int, shared: int, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(heads, shared, size) for _ in range(2))

    def forward(self, x: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Take tokens, and the keys and values of each layer. Of several, none attends to those after it."""
        rows, past = x.shape[1], caches[0].shape[2]
        mask = None if rows == 1 else torch.arange(past + rows)[None] <= past + torch.arange(rows)[:, None]
        grown: list[Tensor] = []
        for layer, keys, values in zip(self.layers, caches[::2], caches[1::2], strict=True):
            x, keys, values = layer(x, keys, values, mask)
            grown += [keys, values]
        return (x, *grown)


def step(heads: int, shared: int, size: int, rows: int = 1) -> Network:
    torch.manual_seed(3)
    past = Dim("past", min=0, max=127)
    caches = [torch.randn(1, shared, 9, size) for _ in range(4)]
    inputs = (torch.randn(1, rows, heads * size), *caches)
    return load_network((Step(heads, shared, size).eval(), inputs, ({}, tuple({2: past} for _ in caches))))


FORMS = {
    "one token": (4, 4, 16),
    "heads that share": (4, 2, 32),
    "three tokens with a mask": (2, 1, 8, 3),
    "keys of no whole vectors": (2, 2, 6),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_step_is_right_at_every_length(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = step(*FORMS[name])
    lowered = import_network(network, CPU)
    assert not lowered.left_out
    attentions = [each.name_hint for each in lowered.module.functions if "attention" in each.name_hint]
    softmaxes = [each.name_hint for each in lowered.module.functions if "softmax" in each.name_hint]
    assert [len(attentions), len(softmaxes)] == ([0, 1] if "no whole" in name else [1, 0])  # one for both layers

    plain = dynamic_kernels.default_schedule
    by_default: list[str] = []
    monkeypatch.setattr(dynamic_kernels, "default_schedule", lambda each: by_default.append(str(each)) or plain(each))
    compile_network(lowered, {}, tmp_path)
    assert any("softmax" in each for each in by_default) == ("no whole" in name)

    run = load(tmp_path)
    for past in PASTS:
        at = network.at({"past": past})
        _, relative = compare(run(*at.example_inputs), at.framework_outputs())
        assert relative < 1e-5, past
