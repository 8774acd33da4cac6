"""The tasks of a lowered network: one for each distinct workload. Kernels over dynamic dimensions are tuned for fixed
extents."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from devices.builds.concatenations import AXIS, IN_PLACE
from devices.builds.executables import blocks, kernel_calls
from devices.networks.graph.ir.block_names import rename_blocks
from devices.networks.tasks.operations import flop_of
from devices.networks.tasks.tile_overlap import tile_overlap
from devices.networks.tasks.tiled_rows import TiledRows, dimensions_of
from devices.sketches.dynamic.attention_extents import AttentionExtents
from devices.sketches.dynamic.rows import is_dynamic, specialized
from devices.sketches.dynamic.tile_counts import tile_counts
from fleet_tune.base.domain import DeviceClass, FewerRows, Task, Workload
from fleet_tune.base.shapes.shapes import Shapes

_MOST_FLOP = 1e9
"""Most operations of a tile of rows. A tile with so many operations takes milliseconds: overheads do not count, and
more rows would gain nothing from sharing the weights. Tuning and checking a larger tile would only take longer."""


@dataclass(frozen=True)
class DynamicTask:
    """The task of a kernel over dynamic dimensions."""

    workload: str
    """Hash of the workload that the kernel is tuned as."""
    extent: int
    """The most rows of a tile. An attention has no tiles of rows: the extent that it is tuned for."""
    repeats: int
    """How many times the kernel does this work in a call at the typical extents."""


@dataclass(frozen=True)
class ExtractedTasks:
    """The tasks of a network, and the kernels that they belong to."""

    tasks: tuple[Task, ...]
    workloads: Mapping[str, str]
    """See :attr:`devices.networks.tasks.lowering.LoweredNetwork.workloads`."""
    dynamic: Mapping[str, DynamicTask]
    """See :attr:`devices.networks.tasks.lowering.LoweredNetwork.dynamic`."""


def extract_tasks(module: Any, device_class: DeviceClass, shapes: Shapes | None = None) -> ExtractedTasks:
    """Return the tasks of the kernels that ``main`` of a lowered network calls.

    The weight of a task is how often a run calls its kernel, at the typical extents of dynamic dimensions. An attention
    is tuned for the powers of two next to these extents, or for smaller extents (see :data:`_MOST_FLOP`). Other kernels
    are tuned for the largest tile of rows.
    """
    functions: dict[str, tuple[str, Any]] = {}
    weights: Counter[str] = Counter()
    workloads: dict[str, str] = {}
    dynamic: dict[str, DynamicTask] = {}
    fewer_rows: dict[str, tuple[FewerRows, ...]] = {}

    def add(name: str, kernel: Any, weight: int) -> str:
        function = rename_blocks(normal_form(kernel))
        digest = workload_hash(function)
        weights[digest] += weight
        functions.setdefault(digest, (name, function))
        return digest

    for name, count in Counter(call.args[0].name_hint for call in kernel_calls(module["main"])).items():
        if _can_be_scheduled(module[name]):
            workloads[name] = add(name, module[name], count)
        elif shapes is not None and (tuned := _tuned_kernel(module[name], shapes)) is not None:
            digest = add(name, tuned.kernel, count * tuned.repeats)
            dynamic[name] = DynamicTask(digest, tuned.extent, tuned.repeats)
            fewer_rows.setdefault(digest, tuned.fewer_rows)
    names: Counter[str] = Counter()
    tasks = []
    for digest, (name, function) in functions.items():
        shown = _display_name(name, function)
        names[shown] += 1
        workload = Workload(
            hash=digest,
            name=shown if names[shown] == 1 else f"{shown}#{names[shown]}",
            flop=flop_of(function),
            module=_text(function),
        )
        tasks.append(Task(workload, device_class, weights[digest], fewer_rows=fewer_rows.get(digest, ())))
    return ExtractedTasks(tuple(tasks), workloads, dynamic)


@dataclass(frozen=True)
class _TunedKernel:
    """A kernel over dynamic dimensions, specialised to the extents that it is tuned for. See :class:`DynamicTask`."""

    kernel: Any
    extent: int
    repeats: int
    fewer_rows: tuple[FewerRows, ...] = ()


def _tuned_kernel(kernel: Any, shapes: Shapes) -> _TunedKernel | None:
    """Return a kernel specialised to the extents that it is tuned for. None if it is not tuned."""
    dimensions = dimensions_of(kernel, shapes)
    if not dimensions or IN_PLACE in kernel.attrs:
        return None
    rows = TiledRows.of(kernel, shapes)
    if rows is not None:
        extent, fixed = _tuned(kernel, rows.dimension.tile_sizes, rows.extents)
        others = math.prod(each.typical for each in dimensions.values()) // rows.dimension.typical
        repeats = math.ceil(rows.dimension.typical / extent) * others
        return _TunedKernel(fixed, extent, repeats, _fewer_rows(kernel, rows, extent))
    attention = AttentionExtents.of(kernel)
    if attention is None:
        return None
    # Powers of two have tiles of many sizes; 111 columns only have tiles of 3 and 37.
    typical = {extent: 1 << round(math.log2(each.typical)) for extent, each in dimensions.items()}
    longest = max(attention.inner, key=lambda each: typical[each])
    sizes = [size for size in dimensions[longest].samples if size < typical[longest]]
    extent, fixed = _tuned(kernel, [*sizes, typical[longest]], lambda most: attention.at_most(typical, most))
    repeats = attention.repeats(typical, extent)
    return _TunedKernel(fixed, extent, repeats) if repeats else None


def _fewer_rows(kernel: Any, rows: TiledRows, most: int) -> tuple[FewerRows, ...]:
    """Return the smaller tiles of a kernel whose largest tile has ``most`` rows."""
    sizes = rows.sizes(most)
    overlap = tile_overlap(kernel, rows)
    calls = dict.fromkeys(sizes, 0.0)
    for extent, weight in rows.dimension.weights:
        for size, count in tile_counts(extent, sizes, overlap).items():
            calls[size] += weight * count
    return tuple(
        FewerRows(
            _text(rename_blocks(normal_form(specialized(kernel, rows.extents(size))))),
            calls[size] * size / (calls[most] * most),
        )
        for size in sizes
        if size < most and calls[size]
    )


def _tuned(kernel: Any, sizes: Sequence[int], extents: Callable[[int], Mapping[Any, int]]) -> tuple[int, Any]:
    """Return the largest of these sizes, ascending, that is not too large (see :data:`_MOST_FLOP`), and the kernel for
    it. ``extents``: returns all extents of the kernel for one of the sizes."""
    for extent in reversed(sizes):
        fixed = specialized(kernel, extents(extent))
        if extent == sizes[0] or flop_of(fixed) <= _MOST_FLOP:
            break
    return extent, fixed


def _text(function: Any) -> str:
    return str(tvm.ir.save_json(tvm.IRModule({"main": function})))


def normal_form(function: Any) -> Any:
    """Return the normal form of a kernel: named ``main``, without the attributes that guided the fusion of the
    graph."""
    return function.without_attr("op_pattern").without_attr(AXIS).with_attr("global_symbol", "main")


def workload_hash(function: Any) -> str:
    """Return the structural hash: the same for the same computation in every process, regardless of the names of
    functions and variables.

    It includes which arguments have a free layout, as these decide how the workload can be scheduled.
    """
    return f"{tvm_ffi.structural_hash(function) & 0xFFFFFFFFFFFFFFFF:016x}"


def _can_be_scheduled(function: Any) -> bool:
    """Return true if ``function`` consists of blocks with iteration axes (not of calls of external code) over fixed
    shapes."""
    if is_dynamic(function) or IN_PLACE in function.attrs:
        return False
    return "tirx.is_scheduled" not in function.attrs and any(len(block.iter_vars) for block in blocks(function.body))


def _display_name(name: str, function: Any) -> str:
    """Return ``fused_conv2d1_add1_relu11`` as ``conv2d_add_relu 56x56x64``: the operators and the shape of the
    result."""
    operators = [re.sub(r"\d+$", "", part) for part in name.removeprefix("fused_").split("_")]
    # "conv2d1" lost its number, and the 2 of "conv2d" with it.
    restored = [{"conv": "conv2d"}.get(part, part) for part in operators if part not in ("tir", "")]
    output = tvm.s_tir.meta_schedule.arg_info.ArgInfo.from_prim_func(function)[-1]
    extents = [int(extent) for extent in output.shape]
    shown = [extent for extent in extents if extent != 1] or [1]
    return f"{'_'.join(restored)} {'x'.join(map(str, shown))}"
