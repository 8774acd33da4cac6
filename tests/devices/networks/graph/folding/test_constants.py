"""What depends on constants alone is a constant, and parts that constant indices choose are slices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from devices.builds.executables import calls, run_on_host
from devices.networks.frontend import load_network
from devices.networks.graph.folding import constants, numpy_operators
from devices.networks.graph.folding.constants import fold_constants
from devices.networks.graph.rewrites.rewriter import rewrite
from devices.networks.tasks.lowering import check_network, import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

CPU = DeviceClass("cpu", resolve_target("native", 2))
X = np.array([[0.5, -1.0, 3.0], [2.0, 0.0, -4.0]], np.float32)
N = np.array([[7, 0, 2], [5, 9, 1]], np.int64)


def constant(array: np.ndarray) -> relax.Expr:
    return relax.const(array, str(array.dtype))


x, n, b = constant(X), constant(N), constant(X > 0)

EXPRESSIONS = [
    relax.op.strided_slice(x, [1], [1], [3]),
    relax.op.strided_slice(x, [0, 1], [-1, 0], [9, -1], [1, 2]),
    relax.op.full((2, 2), relax.const(3.5, "float32"), "float32"),
    relax.op.mod(n, constant(np.array(4))),
    relax.op.where(relax.op.not_equal(x, constant(np.array(0, np.float32))), x, constant(np.array(9, np.float32))),
    *(compare(n, constant(np.array(2))) for compare in (relax.op.equal, relax.op.less, relax.op.less_equal)),
    *(compare(n, constant(np.array(2))) for compare in (relax.op.greater, relax.op.greater_equal)),
    *(logical(b, constant(X > 1)) for logical in (relax.op.logical_and, relax.op.logical_or)),
    *(bitwise(n, constant(np.array(6))) for bitwise in (relax.op.bitwise_and, relax.op.bitwise_or)),
    relax.op.logical_not(b),
    relax.op.bitwise_not(n),
    relax.op.slice_scatter(x, constant(np.ones((2, 1), np.float32)), 1, 2, 1, axis=1),
    relax.op.take(x, constant(np.array([2, 0])), axis=1, mode="clip"),
]


def of_constants(expressions: list[relax.Expr]) -> tvm.IRModule:
    """``main`` without inputs, whose results are ``expressions``."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            output = builder.emit_output(relax.Tuple([builder.emit(expression) for expression in expressions]))
        builder.emit_func_output(output)
    return builder.get()


def results(module: tvm.IRModule) -> list[np.ndarray]:
    """The results of ``main``, which are constants."""
    (block,) = module["main"].body.blocks
    return [field.value.numpy() for field in block.bindings[-1].value.fields]


@pytest.mark.parametrize("fold", [rewrite, fold_constants])
def test_constants_are_what_tvm_computes(fold: Callable[[tvm.IRModule], tvm.IRModule]) -> None:
    module = of_constants(EXPRESSIONS)
    expected = run_on_host(relax.transform.LegalizeOps()(module))
    folded = results(fold(module))
    for ours, theirs in zip(folded, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_constants_are_computed_with_our_lowerings() -> None:
    """TVM's own do not compile a comparison of booleans, pass over NaN, and scatter narrow indices to other places."""
    places, updates = np.array([[1, 0], [0, 1]]), np.array([[10, 20], [30, 40]], np.float32)
    expressions = [
        relax.op.not_equal(b, constant(X > 1)),
        relax.op.argmax(constant(np.array([-1.0, np.nan, 2.0], np.float32)), 0),
        relax.op.scatter_elements(x, constant(places), constant(updates), 0),
    ]
    differ, largest, scattered = results(fold_constants(of_constants(expressions)))
    np.testing.assert_array_equal(differ, (X > 0) != (X > 1))
    np.testing.assert_array_equal(largest, 1)
    np.testing.assert_array_equal(scattered, [[30, 20, 3], [10, 40, -4]])


@pytest.mark.parametrize(
    "expression",
    [
        relax.op.mod(constant(-N), constant(np.array(4))),
        relax.op.strided_slice(x, [1], [2], [0], [-1]),
        relax.op.divide(n, constant(np.array(2))),
    ],
)
def test_numpy_leaves_alone_what_it_may_compute_otherwise(expression: relax.Expr) -> None:
    assert any(call.op.name == expression.op.name for call in calls(rewrite(of_constants([expression]))["main"].body))


class Masked(nn.Module):
    """Adds a causal mask with a running count, made anew at every call."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        count = torch.ones(8, 8).cumsum(0)
        mask = torch.full((8, 8), -1e4).masked_fill(torch.ones(8, 8).tril() > 0, 0.0)
        return scores + mask * count.sin()


def tasks_of(module: nn.Module, *inputs: torch.Tensor) -> list[str]:
    """Names of the tasks without their shapes; the network agrees with torch."""
    network = load_network((module.eval(), inputs))
    lowered = import_network(network, CPU)
    assert lowered.left_out == ()
    assert check_network(lowered, network)[0] < 1e-5
    return [task.workload.name.split(" ")[0] for task in lowered.tasks]


def test_a_mask_is_a_constant() -> None:
    assert tasks_of(Masked(), torch.randn(2, 8, 8)) == ["add"]


def test_a_large_constant_is_not_made_of_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_BYTES", 4)
    module = of_constants([relax.op.cumsum(x, axis=0)])
    assert fold_constants(module).same_as(module)


class Parts(nn.Module):
    """Queries, keys and values of one projection, and a shifted window."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(tokens.roll(3, 1)).view(1, 8, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v + tokens[:, 2, :8]


def test_parts_that_constant_indices_choose_are_slices() -> None:
    tasks = tasks_of(Parts(), torch.randn(1, 8, 16))
    assert "strided_slice_strided_slice_concatenate" in tasks  # the shift
    assert not any("take" in name for name in tasks)
    # The projection is not transposed as a whole.
    assert not any(name.startswith("reshape_transpose") for name in tasks), tasks


def test_slices_of_everything_and_padding_by_nothing_vanish() -> None:
    class Padded(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(image, (0, 0, 0, 0))[:, 0:4].relu()

    assert tasks_of(Padded(), torch.randn(1, 4, 4)) == ["relu"]


@pytest.mark.parametrize(
    ("linear", "norm", "shape"),
    [
        (nn.Linear(6, 8), nn.BatchNorm1d(8), (5, 6)),
        (nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8), (1, 6, 9)),
        (nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), (1, 3, 4, 5, 6)),
        (nn.ConvTranspose2d(6, 8, 4, 2, 1), nn.BatchNorm2d(8), (1, 6, 5, 5)),
    ],
)
def test_a_batch_norm_goes_into_what_is_linear(linear: nn.Module, norm: nn.Module, shape: tuple[int, ...]) -> None:
    assert isinstance(norm.running_mean, torch.Tensor)
    assert isinstance(norm.running_var, torch.Tensor)
    torch.nn.init.normal_(norm.running_mean)
    torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
    tasks = tasks_of(nn.Sequential(linear, norm, nn.ReLU()), torch.randn(*shape))
    assert not {"multiply", "divide", "subtract"} & {part for name in tasks for part in name.split("_")}


def test_what_grows_too_large_is_not_computed_at_import() -> None:
    one = constant(np.ones(1, np.float32))
    builder = relax.BlockBuilder()
    small, large = (builder.normalize(relax.op.broadcast_to(one, (n,))) for n in (1 << 10, 1 << 28))
    result = numpy_operators.evaluate(small, [np.ones(1, np.float32)])
    assert result is not None
    assert result.shape == (1 << 10,)
    assert numpy_operators.evaluate(large, [np.ones(1, np.float32)]) is None
