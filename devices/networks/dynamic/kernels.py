"""The kernels of a network over its dynamic dimensions, made of one schedule each.

A kernel is tuned for one extent. If it has rows, the schedule is also applied to smaller numbers of rows, and tiles of
these sizes together compute any number (see :mod:`devices.sketches.dynamic`). So all tiles read a weight in one layout.
From the schedule of an attention, only the extents of the inner loops are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from devices.networks.graph.ir.block_names import rename_blocks
from devices.networks.tasks.extraction import normal_form
from devices.networks.tasks.lowering import LoweredNetwork
from devices.networks.tasks.tile_overlap import tile_overlap
from devices.networks.tasks.tiled_rows import TiledRows
from devices.sketches.dynamic.applied_schedule import AppliedSchedule
from devices.sketches.dynamic.attention import dynamic_attention
from devices.sketches.dynamic.default_schedule import default_schedule
from devices.sketches.dynamic.many_row_attention import AttentionTiles
from devices.sketches.dynamic.rows import is_dynamic, specialized
from devices.sketches.dynamic.tiled_kernel import LayoutMismatchError, tiled_kernel
from devices.sketches.spaces import ScheduleError
from devices.targets import parse_target


def with_dynamic_kernels(module: tvm.IRModule, lowered: LoweredNetwork, best: Mapping[str, str | None]) -> tvm.IRModule:
    """Return ``module`` with its kernels over the dynamic dimensions scheduled.

    Args:
        module: the network, with all other kernels scheduled.
        lowered: the network.
        best: trace of each task as JSON text, by task id. Kernels whose task has no trace get the default schedule, as
            do kernels without a task.
    """
    tasks = {task.workload.hash: task for task in lowered.tasks}
    threads = int(parse_target(lowered.device_class.target).attrs.get("num-cores", 1))
    functions = dict(module.functions.items())
    for variable, function in functions.items():
        if not is_dynamic(function):
            continue
        name = variable.name_hint
        task = lowered.dynamic.get(name)
        trace = None if task is None else best.get(tasks[task.workload].id)
        attention = dynamic_attention(lowered.module[name], AttentionTiles.of(trace), threads)
        functions[variable] = attention or _tiled(lowered, name, trace, threads) or default_schedule(function)
    return tvm.IRModule(functions, module.attrs)


def _tiled(lowered: LoweredNetwork, name: str, trace: str | None, threads: int) -> PrimFunc | None:
    shapes, kernel = lowered.shapes, lowered.module[name]
    found = None if trace is None or shapes is None else TiledRows.of(kernel, shapes)
    if trace is None or found is None:
        return None
    most = lowered.dynamic[name].extent
    sizes, exact = found.sizes(most), found.dimension.exact_sizes(most)
    kernels = {size: _normal(specialized(kernel, found.extents(size))) for size in sizes}
    try:
        schedule = AppliedSchedule(kernels[sizes[-1]], trace)
    except ScheduleError:
        return None
    scheduled = {size: schedule.of(kernels[size], must_fill=size in exact) for size in sizes}
    fixed = {size: each for size, each in scheduled.items() if each is not None}
    least = sizes[0]
    while fixed:
        # If the schedule does not fit the smallest tile, that tile is computed without a schedule.
        fixed.setdefault(least, specialized(kernel, found.extents(least)))
        try:
            tiled = tiled_kernel(kernel, found.tiled, found.rows, fixed, tile_overlap(kernel, found), threads)
            return tiled.with_attr("tirx.is_scheduled", True)
        except LayoutMismatchError as error:
            if error.size == least:
                return None
            del fixed[error.size]
    return None


def _normal(kernel: Any) -> tvm.IRModule:
    return tvm.IRModule({"main": rename_blocks(normal_form(kernel))})
