"""Weights that are read from several places at a time: the same sums, and only where reading takes the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from devices.builds.passes import weight_streams
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.builds.passes.stack_buffers import FOR_CPU
from devices.builds.passes.weight_streams import read_weights_as_streams
from devices.targets import parse_target, resolve_target
from tests.devices.builds.passes.products import product

NATIVE = parse_target(resolve_target("native", 2))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bodies of loops that read several streams: one for each stream."""
    found: list[Any] = []
    plain = weight_streams.copied_nest

    def noted(*arguments: Any) -> Any:
        found.append(plain(*arguments))
        return found[-1]

    monkeypatch.setattr(weight_streams, "copied_nest", noted)
    return found


def built(module: Any) -> Any:
    use_kernel_passes()
    return tvm.tirx.build(module, target=NATIVE)["main"]


@pytest.mark.parametrize(
    ("rows", "terms", "lanes", "panels", "parts", "loops"),
    [
        (1, 256, 64, 1, 1, 1),
        (2, 256, 64, 1, 1, 1),
        (1, 256, 32, 2, 1, 1),  # two panels, one after the other
        (1, 256, 64, 1, 64, 1),  # two loops over the terms: the outer one has the parts
        (1, 254, 64, 1, 1, 0),  # 254 terms are no multiple of 4
        (3, 256, 64, 1, 1, 0),  # three sums for each vector
        (1, 48, 64, 1, 1, 0),  # a stream of 3 KiB
    ],
)
def test_the_sums_are_the_same_and_read_streams_where_weights_are_read_once(
    rows: int, terms: int, lanes: int, panels: int, parts: int, loops: int, streams: list[Any]
) -> None:
    columns = 2 * lanes * panels
    kernel = built(product(rows, columns, terms, rows, lanes, panels, parts).mod)
    assert len(streams) == 4 * loops
    rng = np.random.default_rng(0)
    a = rng.random((rows, terms), dtype=np.float32)
    b = rng.random((columns // lanes, terms, lanes), dtype=np.float32)
    result = tvm.runtime.tensor(np.zeros((rows, columns), np.float32))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    expected = a @ b.transpose(1, 0, 2).reshape(terms, columns)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4)


FORMS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "sums": lambda x, y, vector, k: y[vector(0)] + x[vector(k * 16)] * 2.0,
    "sums, the other way round": lambda x, y, vector, k: x[vector(k * 16)] + y[vector(0)],
    "largest": lambda x, y, vector, k: tirx.max(y[vector(0)], x[vector(k * 16)]),
    "what was before counts half": lambda x, y, vector, k: y[vector(0)] * 0.5 + x[vector(k * 16)],
    "products with the sums": lambda x, y, vector, k: y[vector(0)] + x[vector(k * 16)] * y[vector(0)],
    "a sum of other places": lambda x, y, vector, k: y[vector(16)] + x[vector(k * 16)],
    "backwards": lambda x, y, vector, k: y[vector(0)] + x[vector(16368 - k * 16)],
    "every second one": lambda x, y, vector, k: y[vector(0)] + x[tirx.Ramp(k * 16, 2, 16)],
    "the same ones": lambda x, y, vector, k: y[vector(0)] + x[vector(0 * k)],
}


@pytest.mark.parametrize("form", FORMS)
def test_only_sums_over_vectors_in_the_order_of_memory_become_streams(form: str, streams: list[Any]) -> None:
    x, y = (tirx.decl_buffer((size,), "float32", name) for size, name in ((16384, "x"), (32, "y")))
    k = tirx.Var("k", "int32")
    value = FORMS[form](x, y, lambda first: tirx.Ramp(first, 1, 16), k)
    body = tirx.For(k, 0, 1000, tirx.ForKind.SERIAL, tirx.BufferStore(y, value, [tirx.Ramp(0, 1, 16)]))
    kernel = tirx.PrimFunc([x, y], body).with_attr(FOR_CPU, 1)
    read_weights_as_streams(tvm.IRModule({"main": kernel}))
    assert len(streams) == (4 if form.startswith("sums") else 0)


def test_kernels_of_other_devices_stay_as_they_are(streams: list[Any]) -> None:
    x, y = (tirx.decl_buffer((size,), "float32", name) for size, name in ((16384, "x"), (16, "y")))
    k = tirx.Var("k", "int32")
    value = y[tirx.Ramp(0, 1, 16)] + x[tirx.Ramp(k * 16, 1, 16)]
    body = tirx.For(k, 0, 1024, tirx.ForKind.SERIAL, tirx.BufferStore(y, value, [tirx.Ramp(0, 1, 16)]))
    read_weights_as_streams(tvm.IRModule({"main": tirx.PrimFunc([x, y], body)}))
    assert streams == []
