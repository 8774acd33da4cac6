"""Inputs of kernels are made where the kernels run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from devices.client.session import RpcSession
from devices.client.workbench import Check, Workbench
from devices.protocol import Artifact, CheckPlan, InputDraw, SpecialDraw, SpecialRows, TensorSpec
from devices.server.server import DeviceServer
from devices.timing import input_request
from devices.timing.input_request import InputRequest

ARGS = (
    *(TensorSpec((6, 8), dtype) for dtype in ("float32", "float64", "float16", "bfloat16", "int8", "int64", "bool")),
    TensorSpec((6, 4), "uint32", holds="bfloat16"),
    TensorSpec((6, 8), "float32"),
)
PLAN = CheckPlan(
    precision="bfloat16",
    draws=tuple(InputDraw(high=4.0, density=0.5, rest=0.25, ends=(1,)) for _ in ARGS),
    specials=tuple(
        SpecialDraw(InputDraw(high=4.0), nan=2, infinite=2, limit=math.inf, rows=SpecialRows((1,), False)) for _ in ARGS
    ),
)


@dataclass(frozen=True)
class Kernel:
    """What a workbench reads of an artifact."""

    task_id: str = "task"
    args: tuple[TensorSpec, ...] = ARGS
    original_args: tuple[TensorSpec, ...] = ARGS
    outputs: tuple[int, ...] = (len(ARGS) - 1,)
    packed: tuple[int, ...] = ()


KERNEL = cast(Artifact, cast(Any, Kernel()))


@pytest.fixture
def bench(server: DeviceServer) -> Iterator[Workbench]:
    session = RpcSession("127.0.0.1", server.port)
    try:
        with session.deadline(60.0):
            yield Workbench(session, "cpu", 1 << 20)
    finally:
        session.close()


def note_sending(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note when inputs are sent."""
    noted, send = [], bench._sent

    def sending(arrays: Any) -> list[Any]:
        noted.append("sent")
        return send(arrays)

    monkeypatch.setattr(bench, "_sent", sending)
    return noted


@pytest.mark.parametrize("positive", [False, True])
def test_a_server_of_ours_makes_them_as_this_process_does(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, positive: bool
) -> None:
    monkeypatch.setattr(bench, "_sent", lambda _: pytest.fail("sent"))
    made = bench.tensors(KERNEL, positive)
    expected = InputRequest.timed(KERNEL, positive).arrays()
    for tensor, array in zip(made, expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    for special in (False, True):
        assert not bench.drop_altered(KERNEL, positive, Check(PLAN, special))


def test_another_server_is_sent_them(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(name: str) -> Any:
        raise AttributeError(name)  # it is of an older version

    monkeypatch.setattr(bench.session, "function", function)
    first, *_ = bench.tensors(KERNEL, positive=False)
    np.testing.assert_array_equal(first.numpy(), next(InputRequest.timed(KERNEL, False).arrays()))


def test_a_request_is_the_same_after_its_way_to_a_server() -> None:
    for special in (False, True):
        request = InputRequest("task", ARGS, (8,), False, PLAN, special)
        assert InputRequest.from_json(request.to_json()) == request
    assert InputRequest.from_json(InputRequest.timed(KERNEL, True).to_json()) == InputRequest.timed(KERNEL, True)


def test_a_server_with_another_numpy_makes_none(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_request, "made_by", lambda: ["1.0", "ours"])
    sent = note_sending(bench, monkeypatch)
    first, *_ = bench.tensors(KERNEL, positive=False)
    np.testing.assert_array_equal(first.numpy(), next(InputRequest.timed(KERNEL, False).arrays()))
    assert len(sent) == 1
