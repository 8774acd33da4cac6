"""What a search is given of a task."""

from __future__ import annotations

import dataclasses

from fleet_tune.base.domain import DeviceClass, Task, Workload
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch, Statement
from tests.helpers.devices import CPU, GPU


def test_the_floor_is_the_peak_of_what_the_task_can_use() -> None:
    task = Task(Workload("0" * 16, "matmul", 28e12, ""), DeviceClass("gpu", "{}"))
    plain = Statement("matmul", (), (), (), 2.0)
    sketches = [Sketch(0, "rule", "t", (), (dataclasses.replace(plain, warp=warp),)) for warp in (1, 32)]
    assert SearchTask(task, tuple(sketches[:1]), GPU).floor_secs == 2.0  # 14 TFLOP/s
    assert SearchTask(task, tuple(sketches), GPU).floor_secs == 2.0  # the peak of the tensor cores is unknown
    tensor = dataclasses.replace(GPU, tensor_cores=8, tensor_flops=112e12)
    assert SearchTask(task, tuple(sketches), tensor).floor_secs == 0.25
    assert SearchTask(task, tuple(sketches[:1]), tensor).floor_secs == 2.0
    assert SearchTask(task, (), CPU).floor_secs == 28e12 / 512e9


def test_products_of_bytes_have_a_floor_of_their_own() -> None:
    task = Task(Workload("0" * 16, "matmul", 28e12, ""), DeviceClass("cpu", "{}"))
    whole = Sketch(0, "rule", "t", (), (Statement("matmul", (), (), (), 2.0, arithmetic="int8"),))
    probed = dataclasses.replace(CPU, int8_flops=280e9)
    assert SearchTask(task, (whole,), probed).floor_secs == 100.0
    assert SearchTask(task, (whole,), CPU).floor_secs == 28e12 / 512e9  # its peak is not known
    plain = Sketch(0, "rule", "t", (), (Statement("matmul", (), (), (), 2.0),))
    assert SearchTask(task, (plain,), probed).floor_secs == 28e12 / 512e9
