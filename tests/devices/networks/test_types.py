"""Types inside of networks and at their edges: what torch computes in a type, the compiled network computes in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from devices.networks.compiled.network_folder import compile_network, load
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import check_network, import_network, tolerance
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError

CPU = DeviceClass("cpu", resolve_target("native", 2))
RELATIVE_ERROR = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}


class Computes(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def agrees(module: nn.Module, *inputs: torch.Tensor, within: float = 1e-5) -> list[str]:
    """The tasks' names, without shapes."""
    network = load_network((module.eval(), inputs))
    lowered = import_network(network, CPU)
    assert check_network(lowered, network)[1] <= within
    assert network.outputs == len(network.framework_outputs())
    assert lowered.left_out == ()
    return [task.workload.name.split(" ")[0] for task in lowered.tasks]


def attention(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("dtype", RELATIVE_ERROR)
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Linear(512, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 8, bias=False)), (4, 512)),
        (nn.Sequential(nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose1d(8, 4, 3)), (1, 3, 16)),
        (nn.Sequential(nn.Conv3d(3, 4, 3), nn.AdaptiveAvgPool3d(1), nn.Softmax(1)), (1, 3, 5, 5, 5)),
        (nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), (1, 4, 32)),
        (Computes(lambda x: torch.addmm(x[:, :4], x, x.mT, beta=2, alpha=0.5)), (4, 64)),
        (Computes(attention), (1, 2, 4, 64)),
        (Computes(lambda x: (x * 3).sum(-1) / x.var(-1)), (4, 2048)),
    ],
    ids=["linear", "1-d", "3-d", "transformer", "addmm", "attention", "sums"],
)
def test_networks_that_are_not_float32(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    agrees(module.to(dtype), torch.randn(shape, dtype=dtype), within=RELATIVE_ERROR[dtype])


@pytest.mark.parametrize("dtype", RELATIVE_ERROR)
def test_batch_norms_are_folded_in_every_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    nn.init.uniform_(norm.running_mean)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    module = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.ConvTranspose2d(8, 4, 3)).to(dtype)
    tasks = agrees(module, torch.randn(1, 3, 8, 8, dtype=dtype), within=RELATIVE_ERROR[dtype])
    assert {"conv2d_add_relu", "conv2d_add_cast_relu"} & set(tasks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tolerance_follows_the_types_inside(dtype: torch.dtype) -> None:
    inputs = (torch.randn(4, 64, generator=torch.Generator().manual_seed(0)),)
    network = load_network((Computes(lambda x: (x.to(dtype) @ x.mT.to(dtype)).float()), inputs))
    lowered = import_network(network, CPU)
    assert (tolerance(lowered) > 1e-3) == (dtype == torch.bfloat16)
    check_network(lowered, network)


@pytest.mark.parametrize("dtype", [*RELATIVE_ERROR, torch.int8, torch.int64, torch.bool])
def test_compiled_networks_take_and_return_every_type(dtype: torch.dtype, tmp_path: Path) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.tensor([[1, 0, 2], [0, 3, 1]]).to(dtype))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.where(self.table == 0, x, self.table), x  # type: ignore[arg-type, call-overload, no-any-return]

    example = torch.tensor([[5, 6, 7], [0, 1, 2]]).to(dtype)
    lowered = import_network(load_network((Table(), (example,))), CPU)
    network = load(compile_network(lowered, {}, tmp_path / "out"))
    expected = torch.where(Table().table == 0, example, Table().table)  # type: ignore[call-overload]
    for ours, torchs in zip(network(example), (expected, example), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, torchs)
    name = str(dtype).removeprefix("torch.")
    array = example.float().numpy().astype(name)
    for output, result in zip(network(array), (expected, example), strict=True):
        assert output.dtype == (ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name))
        np.testing.assert_array_equal(output.astype(np.float64), result.double().numpy())
    assert network.measure_secs(example, repeats=1) > 0


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x * 0.5 + (x > 0.5), (torch.arange(-3, 3),)),
        (lambda x: (x / 2, x // 2, torch.div(x, 2, rounding_mode="trunc")), (torch.arange(-3, 3),)),
        (lambda x, y: (x / y, x // y, x % y), (torch.arange(-3, 3), torch.tensor([2, -2, 3, 1, -1, 2]))),
        (lambda x: x.float() / 255, (torch.arange(250, 256, dtype=torch.uint8),)),
        (lambda x: ~x | (x & x.flip(0)), (torch.tensor([True, False, False]),)),
        (lambda x, m: x.masked_fill(m, -1e9).softmax(-1), (torch.randn(3), torch.tensor([True, False, False]))),
        (lambda x, y: x * y, (torch.randn(3, dtype=torch.float16), torch.tensor(2.0))),
        (lambda x: x @ x.mT, (torch.arange(6).reshape(2, 3),)),
        (lambda x, y: (x + y, x > y, torch.maximum(x, y.long())), (torch.arange(3), torch.ones(3, dtype=torch.int8))),
        (lambda x: x.sum() + x.mean(), (torch.randn(3, 4),)),
        (lambda x: (x.cumsum(-1), x.sum(-1)), (torch.tensor([[True, True, False, True]]),)),
    ],
)
def test_integers_and_booleans(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    agrees(Computes(function), *inputs)


@pytest.mark.parametrize(
    ("function", "outputs"),
    [
        (lambda x: (x + 1, None), 1),
        (lambda x: {"a": (x + 1, [x * 2, None, {"b": x - 1}]), "c": 3}, 3),
        (lambda x: (x, x + 1, x), 3),
        (lambda x: (x + 1, torch.ones(2)), 2),
    ],
)
def test_outputs_are_the_tensors_that_the_module_returns(function: Callable[..., Any], outputs: int) -> None:
    agrees(Computes(function), torch.ones(3))
    assert load_network((Computes(function), (torch.ones(3),))).outputs == outputs


def test_a_module_that_changes_its_buffers_and_inputs_gives_the_same_each_time() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.seen.add_(1)  # type: ignore[operator]
            x.mul_(2)
            self.last = x + self.last
            return x + 1, self.seen, self.last  # type: ignore[return-value]

    module, given = Counts(), torch.ones(3)
    network = load_network((module, (given,)))
    for _ in range(2):
        assert [out.tolist() for out in network.framework_outputs()] == [[3.0] * 3, [1.0] * 3, [2.0] * 3]
    assert network.measure_framework_secs(threads=1, repeats=2) > 0  # type: ignore[operator]
    assert (given.tolist(), module.seen.tolist(), module.last.tolist()) == ([1.0] * 3, [0.0] * 3, [0.0] * 3)
    agrees(module, given)


def within(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(y.sum() > 0, lambda a, b: a @ b, lambda a, b: a - b, (x, y))


@pytest.mark.parametrize("sign", [1, -1])
def test_of_branches_the_result_is_chosen(sign: int, tmp_path: Path) -> None:
    """In branches, with constants and several results, as a module and as a file."""

    def chosen(x: torch.Tensor, y: torch.Tensor) -> Any:
        both = torch.cond(
            x.sum() > 0, lambda a, b: (within(a, b), a * torch.eye(3)), lambda a, b: (b * 2, a + 1), (x, y)
        )
        return torch.cond(x[0, :1] < 0, torch.sin, torch.cos, (both[0],)), both

    inputs = sign * torch.ones(3, 3), torch.arange(9.0).reshape(3, 3)
    agrees(Computes(chosen), *inputs)
    torch.export.save(torch.export.export(Computes(chosen), inputs), tmp_path / "net.pt2")
    network = load_network(tmp_path / "net.pt2")
    check_network(import_network(network, CPU), network)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda _: None, "returns no tensor"),
        (lambda x: torch.fft.rfft(x).abs(), "the result of fft_rfft.default (test_types.py:"),
        (lambda x: x.to(torch.complex64).abs(), "has complex numbers"),
        (lambda x: torch.sparse.mm(x.diag().to_sparse(), x.diag()), "is a sparse tensor (torch.sparse_coo)"),
        (lambda x: nn.functional.dropout(x, training=True), "random results: "),
        (lambda x: x[:0] + 1, "its outputs are empty"),
        (lambda x: torch.linalg.inv(x.diag()), "linalg_inv_ex.default (test_types.py:"),
    ],
)
def test_what_cannot_be_imported_is_refused_in_one_line(function: Callable[..., Any], named: str) -> None:
    with pytest.raises(UnsupportedNetworkError) as caught:
        load_network((Computes(function), (torch.ones(3),)))
    assert named in caught.value.problem
    assert "\n" not in str(caught.value)


def test_what_torch_says_after_a_colon_is_told() -> None:
    with pytest.raises(NetworkError, match="graph break/error: Encountered aliasing during higher order op tracing;"):
        load_network((Computes(lambda x: torch.cond(x.sum() > 0, lambda a: a, torch.sin, (x,))), (torch.ones(3),)))
