"""The task of each kernel in a network of independent kernels. Our tuner and MetaSchedule's tune the same tasks."""

from __future__ import annotations

import json
from pathlib import Path

from bench.peers.example import load_example
from bench.result import BenchError
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.targets import default_device_class_name, resolve_target
from fleet_tune.base.config.fleet_file import load_fleet
from fleet_tune.base.domain import DeviceClass, Task


def device_class_of(fleet: Path) -> DeviceClass:
    """Return the class of the only device in a fleet file."""
    (device,) = load_fleet(fleet).devices
    target = resolve_target(device.target, device.threads)
    return DeviceClass(device.device_class or default_device_class_name(target), target)


def kernel_tasks(model: str, device_class: DeviceClass) -> dict[str, Task]:
    """Return the task of each kernel of ``model`` (file.py:function) by the kernel's name.

    A kernel may become several tasks, because layout changes of its inputs are tasks of their own. The task with the
    most operations is returned.

    Raise BenchError if two kernels become the same task.
    """
    network, inputs = load_example(model)
    tasks = {}
    for name, example in network.examples(inputs).items():  # type: ignore[operator]
        lowered = import_network(load_network(example), device_class)
        tasks[name] = max(lowered.tasks, key=lambda task: task.workload.flop)
    if len({task.workload.hash for task in tasks.values()}) < len(tasks):
        raise BenchError(f"{model}: two of its kernels are the same")
    return tasks


def is_cuda(device_class: DeviceClass) -> bool:
    """Return true if the class is one of NVIDIA GPUs."""
    return bool(json.loads(device_class.target)["kind"] == "cuda")
