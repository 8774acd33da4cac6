"""From networks to tasks: numbers agree with the framework, tasks are what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax, te

from devices.networks.frontend import load_network
from devices.networks.tasks.extraction import workload_hash
from devices.networks.tasks.lowering import (
    import_network,
)
from devices.targets import resolve_target
from examples import networks
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import UnsupportedNetworkError
from tests.helpers.lowered_networks import CPU, agrees, imported, names

ROOT = Path(__file__).resolve().parents[4]


def _flat(example: tuple[nn.Module, tuple[torch.Tensor, ...]]) -> tuple[nn.Module, *tuple[torch.Tensor, ...]]:
    return (example[0], *example[1])


class SmallTransformer(nn.Module):
    """Embedding, one attention layer, feed-forward: two heads over eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.widen, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(ids))
        q, k, v = (part.view(1, 8, 2, 8).transpose(1, 2) for part in self.project(x).split(16, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 8, 16)
        x = x + self.out(mixed)
        return x + self.narrow(nn.functional.gelu(self.widen(x)))  # type: ignore[no-any-return]


def test_small_cnn_folds_batch_norm_and_fuses() -> None:
    lowered, network = imported(*_flat(networks.small_cnn()))
    agrees(lowered, network)
    assert names(lowered) == ["conv2d_add_relu", "conv2d_add_relu", "conv2d_add_relu", "mean", "matmul_add"]
    # 2 x 32 x 32 x 16 x 3 x 3 x 3 multiplications and additions; bias and ReLU on 32 x 32 x 16 elements.
    assert lowered.tasks[0].workload.flop == 2 * 32 * 32 * 16 * 27 + 2 * 32 * 32 * 16


def test_the_weights_of_a_network_are_its_constants() -> None:
    lowered, _ = imported(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)), torch.zeros(4, 64))
    assert lowered.weights_bytes == 4 * (64 * 128 + 128 + 128 * 32 + 32)


def test_mlp() -> None:
    lowered, network = imported(*_flat(networks.mlp()))
    agrees(lowered, network)
    assert names(lowered) == ["matmul_add_relu", "matmul_add_relu", "matmul_add"]
    assert lowered.inputs[0][0] == "x"
    assert (lowered.inputs[0][1].shape, lowered.outputs[0].shape) == ((4, 64), (4, 16))


def test_transformer() -> None:
    torch.manual_seed(3)
    lowered, network = imported(SmallTransformer(), torch.randint(0, 50, (1, 8)))
    agrees(lowered, network)
    assert {"softmax", "layer_norm", "matmul_add_gelu", "matmul_add_add"} <= set(names(lowered))


class Softmaxes(nn.Module):
    """One that a product reads, one along another axis, and one with which something is fused."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = x.transpose(2, 3)
        return torch.softmax(x, -1) @ value, torch.softmax(2 * x, 1) @ value, torch.softmax(3 * x, -1) - x


def test_a_softmax_that_only_products_read_is_one_of_rows() -> None:
    lowered, network = imported(Softmaxes(), torch.randn(2, 3, 5, 7))
    agrees(lowered, network)
    softmaxes = sorted(task.workload.name for task in lowered.tasks if "softmax" in task.workload.name)
    assert softmaxes == ["softmax 2x3x5x7", "softmax 30x7", "softmax_subtract 2x3x5x7"]


def test_resnet18_has_one_task_for_each_distinct_convolution() -> None:
    network = load_network(f"{ROOT / 'examples' / 'networks.py'}:resnet18")
    lowered = import_network(network, CPU)
    convolutions = [task for task in lowered.tasks if task.workload.name.startswith("conv2d")]
    assert sum(task.weight for task in convolutions) == 20
    # Basic blocks: 3x3 with and without residual for each of four widths, two of them with stride; a shortcut each.
    assert len(convolutions) == 15
    assert {task.weight for task in convolutions if "56x56x64" in task.workload.name} == {2}
    # 1.8 GMAC, as the literature has it.
    assert sum(t.weight * t.workload.flop for t in lowered.tasks) == pytest.approx(3.64e9, rel=0.01)


def test_identical_layers_are_one_task() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)  # type: ignore[no-any-return]

    lowered, network = imported(Deep(), torch.randn(2, 16))
    assert [(task.workload.name, task.weight) for task in lowered.tasks] == [("matmul_add_relu 2x16", 4)]
    agrees(lowered, network)


def test_equal_names_are_told_apart() -> None:
    lowered, _ = imported(*_flat(networks.mlp()))
    shown = [task.workload.name for task in lowered.tasks]
    assert shown == ["matmul_add_relu 4x128", "matmul_add_relu 4x128#2", "matmul_add 4x16"]


def test_attention_has_no_guard_against_rows_of_minus_infinity() -> None:
    torch.manual_seed(3)
    lowered, _ = imported(SmallTransformer(), torch.randint(0, 50, (1, 8)))
    assert "matmul_multiply" in names(lowered)
    assert not any("equal" in name or "where" in name for name in names(lowered))


def test_causal_and_masked_attention() -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            attend = nn.functional.scaled_dot_product_attention
            return attend(q, q, q, is_causal=True), attend(q, q, q, attn_mask=mask)

    mask = torch.ones(4, 4, dtype=torch.bool).triu()
    agrees(*imported(Attention(), torch.randn(1, 2, 4, 8), mask))


def test_pools_padding_and_concatenation() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.three = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 6, 3, padding=1)
            self.up = nn.ConvTranspose2d(10, 3, 2, stride=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.max_pool2d(nn.functional.pad(x, (0, 1, 0, 1)), 3, 2)
            return self.up(torch.cat([self.one(x), torch.sigmoid(self.three(x))], 1))  # type: ignore[no-any-return]

    agrees(*imported(Branches(), torch.randn(1, 4, 14, 14)))


@pytest.mark.parametrize(
    ("size", "kernels"),
    [(8, 0), ((4, 8), 1), ((4, 2), 1), (1, 1), ((4, 3), 1)],
    ids=["same", "rows", "both", "all", "uneven"],
)
def test_adaptive_pools_have_windows_of_one_size_where_they_can(size: int | tuple[int, int], kernels: int) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(size), nn.ReLU())
    lowered, network = imported(module, torch.randn(1, 3, 8, 8))
    agrees(lowered, network)
    pools = [name for name in names(lowered) if "pool" in name or "mean" in name]
    assert len(pools) == kernels
    assert any("adaptive" in name for name in pools) == (size == (4, 3))


def test_an_unrolled_loop_has_its_weights_once() -> None:
    class LoweringSteps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.RNNCell(3, 7)

        def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state

    lowered, network = imported(LoweringSteps(), torch.randn(1, 5, 3), torch.randn(1, 7))
    agrees(lowered, network)
    found: list[Any] = []

    def note(node: Any) -> None:
        if isinstance(node, tvm.ir.GenericConst) and tuple(node.value.shape) == (7, 7):
            found.append(node)

    relax.analysis.post_order_visit(lowered.module["main"].body, note)
    assert len(found) == 5
    assert len(set(found)) == 1  # the same object


def test_kernels_of_external_code_stay_out_of_the_tasks() -> None:
    class TopK(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, indices = torch.topk(torch.relu(x) * 2, 3)
            return values, indices

    lowered, network = imported(TopK(), torch.tensor([[1.0, 5.0, 3.0, 4.0, -2.0]]))
    agrees(lowered, network)
    assert "topk" not in " ".join(names(lowered))


def test_an_index_out_of_range_does_not_crash() -> None:
    from devices.builds.executables import compile_host

    lowered, _ = imported(nn.Embedding(5, 3), torch.tensor([1, 2]))
    run = compile_host(lowered.module)
    np.testing.assert_array_equal(run(np.array([4, 9]))[0][0], run(np.array([4, 9]))[0][1])


def test_constant_weights_may_be_laid_out_freely() -> None:
    lowered, _ = imported(*_flat(networks.mlp()))
    function = tvm.ir.load_json(lowered.tasks[0].workload.module)["main"]
    assert [int(index) for index in function.attrs["layout_free_buffers"]] == [1, 2]
    assert function.attrs["global_symbol"] == "main"


def test_no_temporary_folder_outlives_a_process_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run removes the folders that have our name, and no others."""
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def noted(*args: Any, **options: Any) -> str:
        made.append(Path(mkdtemp(*args, **options)).name)
        return str(Path(tempfile.gettempdir()) / made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    network = load_network((networks.small_cnn()[0], networks.small_cnn()[1]))
    lowered = import_network(network, DeviceClass("cpu", resolve_target("native", threads=1)))
    agrees(lowered, network)
    assert made
    assert all(name.startswith("fleet-tune-tmp-") for name in made)


def test_a_network_for_cuda_is_lowered_without_a_gpu() -> None:
    network = load_network((networks.small_cnn()[0], networks.small_cnn()[1]))
    lowered = import_network(network, DeviceClass("gpu", resolve_target({"kind": "cuda", "arch": "sm_87"})))
    agrees(lowered, network)
    assert "conv2d_add_relu" in names(lowered)


def kernel(name: str, inner: str, extent: int = 16) -> tvm.tirx.PrimFunc:
    a = te.placeholder((extent, extent), name=f"{inner}_left")
    out = te.compute((extent, extent), lambda i, j: te.exp(a[i, j]) * 2.0, name=f"{inner}_out")
    return te.create_prim_func([a, out]).with_attr("global_symbol", name)


def test_the_hash_is_of_the_computation_and_not_of_names() -> None:
    assert workload_hash(kernel("main", "x")) == workload_hash(kernel("main", "y"))
    assert workload_hash(kernel("main", "x")) != workload_hash(kernel("main", "x", extent=32))


def test_hashes_are_equal_in_every_process() -> None:
    code = """
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.networks.tasks.extraction import workload_hash
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
device_class = DeviceClass("cpu", resolve_target("native", 2))
lowered = import_network(load_network("examples/networks.py:small_cnn"), device_class)
print(*(task.workload.hash for task in lowered.tasks))
"""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another than this process has
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
    ).stdout.split()
    lowered, _ = imported(*_flat(networks.small_cnn()))
    assert other == [task.workload.hash for task in lowered.tasks]


def test_an_operator_that_cannot_be_lowered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    network = load_network((nn.ReLU(), (torch.ones(2),)))
    monkeypatch.setattr("tvm.relax.transform.LegalizeOps", lambda _ours: tvm.transform.Sequential([]))
    with pytest.raises(UnsupportedNetworkError, match=r"nn\.relu"):
        import_network(network, CPU)


def test_an_optional_step_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise MemoryError("std::bad_alloc\nmore")

    for step in ("ConvertLayout", "FoldConstant", "AttachAttrLayoutFreeBuffers"):
        monkeypatch.setattr(f"tvm.relax.transform.{step}", lambda *_: fails)
    lowered, network = imported(*_flat(networks.small_cnn()))
    agrees(lowered, network)
    steps = ("the choice of layouts", "the folding of lowered constants", "free layouts of weights")
    assert lowered.left_out == tuple((step, "TVM fails at it (MemoryError: std::bad_alloc)") for step in steps)
