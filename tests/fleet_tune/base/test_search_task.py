"""What a search is given of a task."""

from __future__ import annotations

import dataclasses

from fleet_tune.base.domain import DeviceClass, Task, Workload
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Axis, Sketch, Statement
from tests.helpers.devices import CPU, GPU

AXES = (Axis("i", 14 * 10**12, reduction=False),)


def test_the_floor_is_the_peak_of_what_the_task_can_use() -> None:
    task = Task(Workload("0" * 16, "matmul", 28e12, ""), DeviceClass("gpu", "{}"))
    plain = Statement("matmul", AXES, (), (), 2.0)
    sketches = [Sketch(0, "rule", "t", (), (dataclasses.replace(plain, warp=warp),)) for warp in (1, 32)]
    assert SearchTask(task, tuple(sketches[:1]), GPU).floor_secs == 2.0  # 14 TFLOP/s
    assert SearchTask(task, tuple(sketches), GPU).floor_secs == 2.0  # the peak of the tensor cores is unknown
    tensor = dataclasses.replace(GPU, tensor_cores=8, tensor_flops=112e12)
    assert SearchTask(task, tuple(sketches), tensor).floor_secs == 0.25
    assert SearchTask(task, tuple(sketches[:1]), tensor).floor_secs == 2.0
    assert SearchTask(task, (), CPU).floor_secs == 28e12 / 512e9


def test_products_of_bytes_have_a_floor_of_their_own() -> None:
    task = Task(Workload("0" * 16, "matmul", 28e12, ""), DeviceClass("cpu", "{}"))
    whole = Sketch(0, "rule", "t", (), (Statement("matmul", AXES, (), (), 2.0, arithmetic="int8"),))
    probed = dataclasses.replace(CPU, int8_flops=280e9)
    assert SearchTask(task, (whole,), probed).floor_secs == 100.0
    assert SearchTask(task, (whole,), CPU).floor_secs == 28e12 / 512e9  # its peak is not known
    plain = Sketch(0, "rule", "t", (), (Statement("matmul", AXES, (), (), 2.0),))
    assert SearchTask(task, (plain,), probed).floor_secs == 28e12 / 512e9


def test_a_sketch_of_fewer_operations_lowers_the_floor() -> None:
    task = Task(Workload("0" * 16, "conv2d", 28e12, ""), DeviceClass("cpu", "{}"))
    direct = Sketch(0, "rule", "t", (), (Statement("conv2d", AXES, (), (), 2.0),))
    product = Statement("products", (Axis("i", 4 * 10**12, reduction=False),), (), (), 2.0)
    transform = Statement("data_tiles", (Axis("i", 10**12, reduction=False),), (), (), 3.0)
    winograd = Sketch(1, "winograd", "w", (), (product, transform))
    assert SearchTask(task, (direct,), CPU).floor_secs == 28e12 / 512e9
    assert SearchTask(task, (direct, winograd), CPU).floor_secs == (8e12 + 3e12) / 512e9
