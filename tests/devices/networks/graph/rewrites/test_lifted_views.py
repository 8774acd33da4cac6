"""Reshapes move from behind a product to in front of it, where they often meet another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import relax

from devices.builds.executables import calls, compile_host
from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.rewrites.lifted_views import lift_views
from devices.networks.graph.rewrites.rewriter import rewrite
from tests.helpers.quantised_graphs import network

Array = npt.NDArray[Any]
Builder = relax.BlockBuilder
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(0, 1, (8, 6)).astype(np.float32)
BIAS = RNG.normal(0, 1, (1, 6)).astype(np.float32)


def reshapes(module: Any) -> int:
    return sum(operator_name(call) == "relax.reshape" for call in calls(module["main"].body))


def lifted(module: Any, x: Array) -> Any:
    """The module with its reshapes moved; it computes what it computed before."""
    moved = rewrite(lift_views(module))
    relax.analysis.well_formed(moved)  # raises an error otherwise
    results = [compile_host(relax.transform.LegalizeOps()(each))(x)[0] for each in (module, moved)]
    assert results[0].shape == results[1].shape
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)
    return moved


def product(builder: Builder, x: Any, rows: int) -> Any:
    """A product of a matrix of so many rows, with a bias."""
    flat = builder.emit(relax.op.reshape(x, (rows, 8)))
    return builder.emit(relax.op.add(builder.emit(relax.op.matmul(flat, relax.const(WEIGHT))), relax.const(BIAS)))


def test_reshapes_around_a_product_vanish() -> None:
    def body(builder: Builder, x: Any) -> Any:
        between = builder.emit(relax.op.clip(product(builder, x, 10), 0, 3))
        return relax.op.add(builder.emit(relax.op.reshape(between, (2, 5, 6))), relax.const(np.float32(1)))

    assert reshapes(lifted(network((2, 5, 8), body), RNG.normal(0, 1, (2, 5, 8)).astype(np.float32))) == 0


def test_rounding_in_front_of_the_product_is_moved_too() -> None:
    def body(builder: Builder, x: Any) -> Any:
        flat = builder.emit(relax.op.reshape(x, (10, 8)))
        whole = builder.emit(relax.op.round(builder.emit(relax.op.divide(flat, relax.const(np.float32(0.5))))))
        return relax.op.reshape(builder.emit(relax.op.matmul(whole, relax.const(WEIGHT))), (2, 5, 6))

    assert reshapes(lifted(network((2, 5, 8), body), RNG.normal(0, 1, (2, 5, 8)).astype(np.float32))) == 0


def test_without_another_reshape_it_is_a_view_in_front() -> None:
    def body(builder: Builder, x: Any) -> Any:
        value = builder.emit(relax.op.matmul(builder.emit(relax.op.exp(x)), relax.const(WEIGHT)))
        return relax.op.tanh(builder.emit(relax.op.reshape(value, (2, 5, 6))))

    moved = lifted(network((10, 8), body), RNG.normal(0, 1, (10, 8)).astype(np.float32))
    assert [operator_name(call) for call in calls(moved["main"].body)] == [
        "relax.exp",
        "relax.reshape",
        "relax.matmul",
        "relax.tanh",
    ]


def test_a_number_known_at_run_time_is_no_hindrance() -> None:
    def body(builder: Builder, x: Any) -> Any:
        largest = builder.emit(relax.op.max(x))
        value = builder.emit(relax.op.multiply(product(builder, x, 10), largest))
        return relax.op.reshape(value, (2, 5, 6))

    assert reshapes(lifted(network((2, 5, 8), body), RNG.normal(0, 1, (2, 5, 8)).astype(np.float32))) == 0


OTHERS: dict[str, Callable[[Builder, Any], Any]] = {
    "the last axis changes": lambda builder, x: relax.op.reshape(product(builder, x, 10), (5, 12)),
    "the product is read twice": lambda builder, x: relax.op.multiply(
        builder.emit(relax.op.reshape(value := product(builder, x, 10), (2, 5, 6))),
        builder.emit(relax.op.expand_dims(builder.emit(relax.op.max(value, 0)), 0)),
    ),
    "rows are summed": lambda builder, x: relax.op.reshape(
        builder.emit(relax.op.sum(product(builder, x, 10), 0, keepdims=True)), (1, 1, 6)
    ),
    "another operand has rows": lambda builder, x: relax.op.reshape(
        builder.emit(relax.op.add(product(builder, x, 10), relax.const(np.ones((10, 1), np.float32)))), (2, 5, 6)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    module = network((2, 5, 8), OTHERS[name])
    assert lift_views(module).same_as(module)
