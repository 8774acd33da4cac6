"""Networks of float32 converted to bfloat16, float16, and weights of int8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from tvm.s_tir import SBlock
from tvm.tirx import Buffer
from tvm_ffi import structural_walk

from devices.builds.executables import kernel_calls
from devices.networks.checks.comparison import errors_of
from devices.networks.frontend import Network, load_network
from devices.networks.graph.precisions.weight_only import MOST_ROWS, quantized
from devices.networks.tasks.lowering import (
    DisagreementError,
    LoweredNetwork,
    agreement,
    check_network,
    import_network,
    run_untuned,
    tolerance,
)
from devices.sketches.spaces import DesignSpace, unscheduled
from fleet_tune.base.domain import Candidate
from fleet_tune.base.errors import UnsupportedNetworkError
from fleet_tune.base.precision import Precision
from policies.space.sampling import sample
from tests.helpers.lowered_networks import CPU, names
from tests.helpers.scheduled import run

Array = npt.NDArray[Any]
HALVES = {Precision.BF16: np.dtype(ml_dtypes.bfloat16), Precision.FP16: np.dtype(np.float16)}
NAMED = (*HALVES, Precision.INT8W)
halves = pytest.mark.parametrize("precision", list(HALVES))


def converted(precision: Precision, module: nn.Module, *inputs: torch.Tensor) -> tuple[LoweredNetwork, Network]:
    """A module in a precision, lowered."""
    network = load_network((module.eval(), inputs)).in_precision(precision)
    return import_network(network, CPU), network


def outputs_of(lowered: LoweredNetwork, network: Network) -> tuple[Array, ...]:
    return run_untuned(lowered.module, network.example_inputs).outputs


def kernel_types(lowered: LoweredNetwork) -> list[list[str]]:
    """The types of the arguments of each kernel in the order of the calls, the result last."""
    kernels = [lowered.module[call.args[0]] for call in kernel_calls(lowered.module["main"])]
    return [[str(each.dtype) for each in kernel.params] for kernel in kernels]


class Residual(nn.Module):
    """Two convolutions and a sum, of which the first one's result is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.first(x).relu()
        return self.head((self.second(kept) + kept).relu().mean((2, 3)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(self.norm(x)).view(1, -1, 3, 4, self.width // 4).permute(2, 0, 3, 1, 4)
        scores = (parts[0] @ parts[1].transpose(-1, -2) * 0.3).softmax(-1)
        return x + self.outer((scores @ parts[2]).transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A step of decoding: one row, and a cache of keys and values."""

    def __init__(self, width: int = 32, words: int = 50) -> None:
        super().__init__()
        self.embedding, self.query = nn.Embedding(words, width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 64), nn.Linear(64, width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, word: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        x = self.embedding(word)
        x = x + (self.query(x) @ keys.T).softmax(-1) @ values
        return self.head(x + self.down(nn.functional.gelu(self.up(x))))  # type: ignore[no-any-return]


def decoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    return Decoder(), (torch.tensor([3]), torch.randn(7, 32), torch.randn(7, 32))


@halves
def test_a_product_rounds_its_operands_and_nothing_else(precision: Precision) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 16), torch.randn(5, 24)
    lowered, network = converted(precision, layer, x)
    weight, data = (each.detach().numpy().astype(HALVES[precision]).astype(np.float64) for each in (layer.weight, x))
    assert layer.bias is not None
    by_hand = data @ weight.T + layer.bias.detach().numpy()
    [ours] = outputs_of(lowered, network)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, by_hand, atol=1e-6)
    [theirs] = network.framework_outputs()
    errors = errors_of((ours,), (theirs,))
    difference, scale = np.abs(by_hand - theirs), np.abs(theirs).max()
    assert errors.absolute == pytest.approx(difference.max(), abs=1e-6)
    assert errors.relative == pytest.approx(difference.max() / scale, abs=1e-6)
    assert errors.mean == pytest.approx(difference.mean() / scale, abs=1e-6)
    assert 0 < errors.mean < errors.relative < tolerance(lowered)


@halves
@pytest.mark.parametrize("module", [Residual(), Attention(), Attention(64)])
def test_networks_agree_within_their_precision(precision: Precision, module: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 8, 6, 6) if isinstance(module, Residual) else torch.randn(1, 6, module.width)  # type: ignore[arg-type]
    lowered, network = converted(precision, module, x)
    _, relative = check_network(lowered, network)
    assert 1e-6 < relative < tolerance(lowered)
    assert [spec.dtype for spec in lowered.outputs] == [spec.dtype for _, spec in lowered.inputs] == ["float32"]
    assert lowered.precision is precision


def test_values_between_products_are_stored_in_16_bits() -> None:
    lowered, _ = converted(Precision.BF16, Residual(), torch.randn(1, 8, 6, 6))
    first, second = [types for types in kernel_types(lowered) if len(types) == 4][:2]
    # Data, weights (bfloat16, or two of them in a number), bias, result.
    assert (first[0], first[1] != "float32", first[2:]) == ("bfloat16", True, ["float32", "bfloat16"])
    # Its data is in the sum behind it too, for which nothing else is read. A mean reads the result.
    assert (second[0], second[1] != "float32", second[2:]) == ("bfloat16", True, ["float32", "float32"])


def test_delicate_operators_read_float32() -> None:
    lowered, _ = converted(Precision.FP16, Attention(), torch.randn(1, 6, 32))
    called = [call.args[0].name_hint for call in kernel_calls(lowered.module["main"])]
    by_name = dict(zip(called, kernel_types(lowered), strict=True))
    [softmax] = [types for name, types in by_name.items() if "softmax" in name]
    assert softmax == ["float32", "float16"]
    [norm] = [types for name, types in by_name.items() if "norm" in name]
    assert norm == ["float32", "float32", "float32", "float16"]


def test_products_of_one_row_have_weights_of_int8() -> None:
    module, inputs = decoder()
    lowered, network = converted(Precision.INT8W, module, *inputs)
    found = names(lowered)
    assert sum("weight_only_matmul" in name for name in found) == 4
    assert not any("astype" in name or "cast" in name for name in found)  # no weight becomes float32 in memory
    read = [types[1] for types in kernel_types(lowered) if "int8" in types]
    assert read == ["int8"] * 4
    _, relative = check_network(lowered, network)
    assert 1e-5 < relative < tolerance(lowered)


def test_weights_of_int8_are_applied_as_by_hand() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 16), torch.randn(2, 24)
    lowered, network = converted(Precision.INT8W, layer, x)
    weight = layer.weight.detach().numpy().T.astype(np.float64)
    scales = np.abs(weight).max(axis=0) / 127
    assert layer.bias is not None
    by_hand = x.numpy() @ (np.rint(weight / scales) * scales) + layer.bias.detach().numpy()
    np.testing.assert_allclose(outputs_of(lowered, network)[0], by_hand, atol=1e-5)


def test_rounding_to_even_zeros_and_numbers_that_are_none() -> None:
    weight = np.array([[127, 0, 2e-45], [2.5, 0, 0], [-3.5, 0, 0], [-127, 0, 0]], np.float32)
    found = quantized(weight)
    assert found is not None
    numbers, scales = found
    assert numbers.dtype == np.int8
    assert numbers.T.tolist() == [[127, 2, -4, -127], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert scales.tolist() == [1, 1, 1]
    assert quantized(np.array([[1, np.inf]], np.float32)) is None


def test_products_of_many_rows_stay_in_float32() -> None:
    module = nn.Linear(16, 8)
    few, _ = converted(Precision.INT8W, module, torch.randn(MOST_ROWS, 16))
    assert "weight_only_matmul" in names(few)[0]
    with pytest.raises(UnsupportedNetworkError, match="nothing for the precision int8w") as caught:
        converted(Precision.INT8W, module, torch.randn(MOST_ROWS + 1, 16))
    assert "leave --precision out" in caught.value.next_step


@pytest.mark.parametrize(
    ("precision", "module", "dtype"),
    [
        (Precision.BF16, nn.Linear(8, 8), torch.bfloat16),
        (Precision.FP16, nn.Linear(8, 8), torch.float64),
        (Precision.BF16, nn.ReLU(), torch.float32),
        (Precision.INT8W, nn.Conv1d(1, 8, 8), torch.float32),
    ],
)
def test_a_precision_that_changes_nothing_is_refused(
    precision: Precision, module: nn.Module, dtype: torch.dtype
) -> None:
    with pytest.raises(UnsupportedNetworkError, match=f"nothing for the precision {precision}"):
        converted(precision, module.to(dtype), torch.randn(1, 8).to(dtype))


@pytest.mark.parametrize("precision", NAMED)
def test_garbage_is_no_rounding(precision: Precision) -> None:
    module, inputs = decoder()
    lowered, network = converted(precision, module, *inputs)
    [right] = network.framework_outputs()
    agreement(lowered, (right,), (right,))
    for wrong in (np.roll(right, 1), right * np.float32(0.5), np.where(right == right.max(), np.nan, right)):
        with pytest.raises(DisagreementError, match=f"converted to {precision}"):
            agreement(lowered, (wrong.astype(np.float32),), (right,))


def test_the_precision_is_part_of_what_a_network_is() -> None:
    network = load_network((nn.Linear(8, 8), (torch.randn(1, 8),)))
    assert network.in_precision(None) is network
    prints = {network.in_precision(precision).fingerprint for precision in NAMED}
    prints |= {network.in_precision(Precision.AUTO, error).fingerprint for error in (0.01, 0.02)}
    assert len(prints | {network.fingerprint}) == 6


def test_scheduled_kernels_read_int8_and_pack_it() -> None:
    """Candidates of all sketches agree with the unscheduled program, and none makes floats of the weights in memory."""
    torch.manual_seed(0)
    lowered, _ = converted(Precision.INT8W, nn.Linear(64, 96), torch.randn(1, 64))
    (task,) = lowered.tasks
    space, oracle = DesignSpace(task), unscheduled(task)
    rng = np.random.default_rng(0)
    inputs = [
        rng.integers(-127, 128, spec.shape).astype(spec.dtype)
        if spec.dtype == "int8"
        else rng.normal(size=spec.shape).astype(spec.dtype)
        for spec in oracle.args
    ]
    expected = run(oracle, inputs, CPU.target)
    packed = set()
    for sketch in space.sketches:
        assert sketch.described
        for row in sample(sketch, 2, rng):
            scheduled = space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row))))
            packed |= {scheduled.args[at].dtype for at in scheduled.packed}
            assert not _float_buffers(scheduled.module["main"], 64 * 96)
            for got, wanted in zip(run(scheduled, inputs, CPU.target), expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
    assert {sketch.rule for sketch in space.sketches} >= {"register-blocked", "multi-level-tiling"}
    assert "int8" in packed


def _float_buffers(function: Any, elements: int) -> list[Buffer]:
    """The buffers of float32 that a function allocates with so many elements."""
    found: list[Buffer] = []
    structural_walk(function.body, [(SBlock, lambda block: found.extend(block.alloc_buffers))])
    sizes = [int(np.prod([int(extent) for extent in each.shape])) for each in found]
    return [each for each, size in zip(found, sizes, strict=True) if str(each.dtype) == "float32" and size >= elements]


def test_each_product_has_its_own_precision_with_auto() -> None:
    """Places are those of the network in float32, whatever was converted before."""
    module, inputs = decoder()
    network = load_network((module.eval(), inputs)).in_precision(Precision.AUTO, 0.05)
    plain = import_network(network, CPU)
    found = {each.at: each for each in plain.convertible}
    assert [each.name for each in plain.convertible].count("matmul 50") == 1
    assert not any("weight_only" in name for name in names(plain))
    of_weights = [at for at, each in found.items() if each.savings[0][0] is Precision.INT8W]
    assert len(of_weights) == 4, "the products with constant matrices"
    assert all(each.savings[-1][0] is Precision.BF16 for each in found.values())
    first, last = of_weights[0], of_weights[-1]
    products = ((first, Precision.BF16), (last, Precision.INT8W))
    assert network.conversion is not None
    chosen = replace(network, conversion=replace(network.conversion, products=products))
    lowered = import_network(chosen, CPU)
    kernels = kernel_types(lowered)
    assert sum("weight_only_matmul" in name for name in names(lowered)) == 1
    assert [len(types) for types in kernels if "int8" in types], "the last product reads int8"
    assert lowered.conversion is not None
    assert lowered.conversion.counts == {"bf16": 1, "int8w": 1}
    _, relative = check_network(lowered, network)
    assert 1e-6 < relative < tolerance(lowered)


@pytest.mark.parametrize(("rows", "best"), [(1, Precision.INT8W), (MOST_ROWS + 1, Precision.BF16)])
def test_the_rows_of_a_product_decide_what_saves_the_most(rows: int, best: Precision) -> None:
    network = load_network((nn.Linear(512, 512), (torch.randn(rows, 512),))).in_precision(Precision.AUTO, 0.05)
    [product] = import_network(network, CPU).convertible
    assert product.savings[0][0] is best
    assert [saved for _, saved in product.savings] == sorted((saved for _, saved in product.savings), reverse=True)
