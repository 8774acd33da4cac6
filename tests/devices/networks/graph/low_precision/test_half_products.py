"""Products of bfloat16 in pairs give what the same network gives term by term, with sums in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from tvm import relax

from devices.builds.checks.check_plan import plan_of
from devices.builds.executables import compile_host, kernel_calls
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.client.output_check import disagreement
from devices.networks.graph.low_precision.half_products import half_products
from devices.networks.tasks.lowering import LoweringSteps, lower_network
from devices.sketches.spaces import DesignSpace, parse_module, unscheduled
from devices.targets import parse_target, resolve_target
from devices.timing.checked_inputs import make_checked_inputs
from fleet_tune.base.domain import Candidate, DeviceClass
from policies.space.sampling import sample
from tests.helpers.scheduled import run

Array = npt.NDArray[Any]
Builder = relax.BlockBuilder
BFLOAT16 = ml_dtypes.bfloat16
CPU = DeviceClass("cpu", resolve_target("native", 2))
GPU = resolve_target("nvidia/jetson-orin-nano")
LAYOUTS = {1: ("NWC", "WIO"), 2: ("NHWC", "HWIO"), 3: ("NDHWC", "DHWIO")}


@pytest.fixture(autouse=True)
def _kernel_passes() -> None:
    use_kernel_passes()


def network(shapes: list[tuple[int, ...]], body: Callable[..., Any], dtype: str = "bfloat16") -> Any:
    """A module whose ``main`` has inputs of a type, and returns what ``body`` gives for them."""
    builder = Builder()
    inputs = [relax.Var(f"x{at}", relax.TensorType(shape, dtype)) for at, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(body(*inputs))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def halves(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(0, 1, shape).astype(BFLOAT16)


def in_pairs(module: Any, target: str = CPU.target) -> list[str]:
    """The kernels that ``main`` has after the rewriting."""
    new = half_products(module, parse_target(target))
    return [str(call.args[0].name_hint) for call in kernel_calls(new["main"])]


def check(module: Any, inputs: list[Array], expected: Array, terms: int) -> None:
    """Compare the result in pairs with numpy's: sums in float32, rounded once where the network rounds."""
    ours = half_products(module, parse_target(CPU.target))
    (result,) = compile_host(relax.transform.LegalizeOps()(ours))(*inputs)
    roundoff = 2.0**-8 if result.dtype == BFLOAT16 else terms * 2.0**-24
    error = np.abs(result.astype(np.float64) - expected)
    assert result.shape == expected.shape
    assert error.max() <= roundoff * max(1.0, np.abs(expected).max()) * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 10), (1, 33), (4, 1)])
def test_products_with_a_matrix(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    weight, x = halves(rng, shape[-1], 12), halves(rng, *shape)
    module = network([shape], lambda x: relax.op.matmul(x, relax.const(weight, "bfloat16"), out_dtype=dtype))
    assert in_pairs(module) == ["matmul"]
    check(module, [x], x.astype(np.float64) @ weight.astype(np.float64), shape[-1])


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 4, 6), (2, 6, 5)), ((2, 3, 4, 7), (2, 3, 7, 5)), ((4, 6), (3, 6, 5)), ((2, 1, 4, 6), (3, 6, 5))],
)
def test_products_of_two_values(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """The second one is packed by a kernel; outer axes are broadcast."""
    rng = np.random.default_rng(1)
    x, y = halves(rng, *left), halves(rng, *right)
    module = network([left, right], lambda x, y: relax.op.matmul(x, y, out_dtype="float32"))
    assert in_pairs(module) == ["pairs", "matmul"]
    check(module, [x, y], x.astype(np.float64) @ y.astype(np.float64), left[-1])


def test_numbers_of_float16_are_converted_once() -> None:
    rng = np.random.default_rng(5)
    x, y, weight = (rng.normal(0, 1, shape).astype(np.float16) for shape in ((2, 4, 8), (2, 8, 6), (6, 5)))

    def body(x: Any, y: Any) -> Any:
        inner = relax.op.astype(relax.op.matmul(x, y, out_dtype="float32"), "float16")
        return relax.op.matmul(inner, relax.const(weight), out_dtype="float32")

    module = network([(2, 4, 8), (2, 8, 6)], body, "float16")
    new = half_products(module, parse_target(CPU.target))
    kernels = [new[call.args[0]] for call in kernel_calls(new["main"])]
    assert len(kernels) == 2
    assert all('"meta_schedule.inline_rule": "disable"' in kernel.script() for kernel in kernels)
    between = (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float16)
    (result,) = compile_host(relax.transform.LegalizeOps()(new))(x, y)
    np.testing.assert_allclose(result, between.astype(np.float64) @ weight.astype(np.float64), rtol=0, atol=0.02)


@pytest.mark.parametrize(("groups", "constant"), [(4, True), (1, False), (4, False)])
def test_convolutions_of_float16_need_no_pairs(groups: int, constant: bool) -> None:
    """One channel in each group, and weights that are computed."""
    import torch

    rng = np.random.default_rng(6)
    x, weight = (rng.normal(0, 1, shape).astype(np.float16) for shape in ((1, 6, 6, 4), (3, 3, 4 // groups, 8)))

    def body(x: Any, *weights: Any) -> Any:
        settings = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": "float32"}
        return relax.op.nn.conv2d(x, *weights or (relax.const(weight),), 1, 1, groups=groups, **settings)

    inputs = [x] if constant else [x, weight]
    module = network([each.shape for each in inputs], body, "float16")
    new = half_products(module, parse_target(CPU.target))
    (call,) = kernel_calls(new["main"])
    assert '"meta_schedule.inline_rule": "disable"' in new[call.args[0]].script()
    wide = [torch.from_numpy(each.astype(np.float64)) for each in (np.moveaxis(x, -1, 1), weight)]
    expected = torch.nn.functional.conv2d(wide[0], wide[1].permute(3, 2, 0, 1), None, 1, 1, 1, groups)
    check(module, inputs, np.moveaxis(expected.numpy(), 1, -1), weight.size // 8)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("channels", "groups", "kernel", "stride", "padding", "dilation"),
    [(8, 1, 1, 1, 0, 1), (5, 1, 3, 1, 1, 1), (3, 1, 3, 2, 1, 1), (8, 2, 3, 1, 1, 1), (4, 1, 2, 1, 2, 2)],
)
def test_convolutions(
    rank: int, channels: int, groups: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    import torch

    rng = np.random.default_rng(rank)
    weight, shape = halves(rng, *[kernel] * rank, channels // groups, 6), (1, *[6] * rank, channels)
    data_layout, kernel_layout = LAYOUTS[rank]

    def body(x: Any) -> Any:
        settings = {"data_layout": data_layout, "kernel_layout": kernel_layout, "out_dtype": "float32"}
        operator = getattr(relax.op.nn, f"conv{rank}d")
        return operator(x, relax.const(weight, "bfloat16"), stride, padding, dilation, groups, **settings)

    module = network([shape], body)
    assert in_pairs(module) == [f"conv{rank}d"]
    x = halves(rng, *shape)
    first, last = (torch.from_numpy(each.astype(np.float64)) for each in (np.moveaxis(x, -1, 1), weight))
    operator = getattr(torch.nn.functional, f"conv{rank}d")
    wide = operator(first, last.permute(-1, -2, *range(rank)), None, stride, padding, dilation, groups)
    check(module, [x], np.moveaxis(wide.numpy(), 1, -1), weight.size // 6)


def test_a_value_that_two_products_read_is_packed_once() -> None:
    def body(x: Any, y: Any) -> Any:
        return relax.op.add(*(relax.op.matmul(each, y, out_dtype="float32") for each in (x, relax.op.negative(x))))

    assert in_pairs(network([(4, 6), (6, 5)], body)).count("pairs") == 1


def test_what_has_no_form_in_pairs_stays() -> None:
    rng = np.random.default_rng(2)
    wide = relax.const(rng.normal(size=(6, 5)).astype(np.float32))
    depthwise = relax.const(halves(rng, 3, 3, 1, 4), "bfloat16")
    settings = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": "float32"}
    others = [
        network([(4, 6)], lambda x: relax.op.matmul(relax.op.astype(x, "float32"), wide)),
        network([(6,), (6, 5)], lambda x, y: relax.op.matmul(x, y, out_dtype="float32")),
        network([(1, 6, 6, 4)], lambda x: relax.op.nn.conv2d(x, depthwise, groups=4, **settings)),
    ]
    for module in others:
        assert half_products(module, parse_target(CPU.target)).same_as(module)
    product = network([(4, 6), (6, 5)], lambda x, y: relax.op.matmul(x, y, out_dtype="float32"))
    assert half_products(product, parse_target(GPU)).same_as(product)


def test_candidates_of_all_sketches_agree_with_the_unscheduled_program() -> None:
    """A product with what follows it, scheduled by every rule; the inputs of the check hold pairs of small numbers."""
    rng = np.random.default_rng(4)
    weight = relax.const(halves(rng, 30, 32), "bfloat16")

    def body(x: Any) -> Any:
        return relax.op.nn.relu(relax.op.astype(relax.op.matmul(x, weight, out_dtype="float32"), "bfloat16"))

    lowered = lower_network(network([(24, 30)], body), "fingerprint", ("x",), CPU, LoweringSteps("net"))
    assert not lowered.left_out
    (task,) = lowered.tasks
    assert task.workload.flop >= 2 * 24 * 32 * 15
    space, oracle = DesignSpace(task), unscheduled(task)
    assert [spec.holds for spec in oracle.original_args] == ["", "bfloat16", ""]
    plan = plan_of(parse_module(task.workload.module)["main"])
    assert plan.exact
    assert plan.sums
    checks = []
    for special in (False, True):
        inputs = make_checked_inputs(task.id, oracle.args, oracle.outputs, False, plan, special)
        pairs = inputs[1].view(BFLOAT16).astype(np.float64)
        assert special or (np.abs(pairs) <= 1).all()
        checks.append((special, inputs, run(oracle, inputs, CPU.target)))
    wide = checks[0][1][1].view(BFLOAT16).reshape(15, 32, 2).swapaxes(1, 2).reshape(30, 32).astype(np.float64)
    expected = np.maximum(checks[0][1][0].astype(np.float64) @ wide, 0)
    np.testing.assert_array_equal(checks[0][2][0].astype(np.float64), expected.astype(BFLOAT16).astype(np.float64))
    rules = set()
    for sketch in space.sketches:
        assert sketch.described
        for row in sample(sketch, 3, rng):
            scheduled = space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row))))
            for special, inputs, outputs in checks:
                got = run(scheduled, inputs, CPU.target)
                assert not disagreement(outputs, got, plan, special=special)
            rules.add(sketch.rule)
    assert {"register-blocked", "multi-level-tiling"} <= rules
