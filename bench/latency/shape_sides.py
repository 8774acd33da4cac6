"""Times a network with a dynamic dimension, networks of fixed shapes and frameworks in turn, at several extents.

Each side runs in its own process of :mod:`devices.networks.frameworks.child`. The process compares the side's outputs
with the expected ones before the side is timed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import bench_env, cores
from bench.processes import Conversation
from bench.result import BenchError, interleave, spread
from devices.networks.frameworks.order import OURS, FrameworkOrder

# Relative to the largest output. A side with a larger error computes something else, so its time is not comparable.
_LARGEST_ERROR = 1e-3
# The thread pool of a side spins for a while after its last run.
_SETTLE_SECS = 0.3
_START_SECS = 1800.0
"""Time limit for the start of a side: it is exported, then compiled and warmed up for each extent in turn."""


@dataclass(frozen=True)
class Sampled:
    """A network with its inputs and expected outputs at some extents."""

    dimension: str
    """Name of its dynamic dimension."""
    shapes: str
    """Its bounds and weights."""
    weights: tuple[tuple[int, float], ...]
    """The extents, ascending, with their weights."""
    arrays: tuple[str, ...]
    """File of inputs and expected outputs for each extent."""
    input_shapes: tuple[tuple[int | str, ...], ...]
    """Shapes of its inputs, with the dimension's name in place of its extent."""
    frameworks: tuple[str, ...]
    """Names of the frameworks that are installed and may run it."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Sampled:
        """Return the network from the fields of a JSON object."""
        lists = {name: tuple(map(tuple, fields[name])) for name in ("weights", "input_shapes")}
        return cls(**{**fields, **lists, "arrays": tuple(fields["arrays"]), "frameworks": tuple(fields["frameworks"])})

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents, ascending."""
        return tuple(extent for extent, _ in self.weights)


@dataclass(frozen=True)
class Side:
    """A compiled network or a framework that is timed."""

    name: str
    """Sides with the same name have different extents."""
    framework: str
    """Name of a framework, or :data:`OURS`."""
    extents: tuple[int, ...]
    """Extents at which it is timed."""
    folder: Path | None = None
    """Folder of the compiled network; None for a framework."""


def time_sides(
    model: str, sides: Sequence[Side], sampled: Sampled, work: Path, *, rounds: int, block_secs: float
) -> dict[int, dict[str, dict[str, Any]]]:
    """Time all sides in turn at each extent, in ``rounds`` blocks of ``block_secs`` each.

    Return by extent and side name the spread of the seconds per run (``secs``) and the ``relative_error``. A side that
    does not run correctly at an extent has a ``problem`` instead. ``work``: folder for the order files of the
    processes. Raise :class:`BenchError` if a compiled network of ours has a problem.
    """
    with ExitStack() as stack:
        found: dict[int, dict[str, dict[str, Any]]] = {extent: {} for extent in sampled.extents}
        blocks: dict[tuple[int, str], Callable[[], list[float]]] = {}
        for side in sides:
            child, told = _started(model, side, sampled, work, stack)
            for at, (extent, body) in enumerate(zip(_order(side), told, strict=True)):
                found[extent][side.name] = _judged(side, extent, body)
                if child is not None and "problem" not in found[extent][side.name]:
                    blocks[extent, side.name] = _block(child, block_secs, at)
        by_extent = {
            f"{extent} {name}": blocks[extent, name] for extent, name in sorted(blocks, key=lambda key: key[0])
        }
        samples = interleave(rounds, by_extent)
        for extent, name in blocks:
            found[extent][name]["secs"] = spread(samples[f"{extent} {name}"])
    return found


def _started(
    model: str, side: Side, sampled: Sampled, work: Path, stack: ExitStack
) -> tuple[Conversation | None, list[Mapping[str, Any]]]:
    """Start the process of a side. Return the process (None if it failed) and its report on each extent, in the order
    of :func:`_order`."""
    threads = cores()
    files = dict(zip(sampled.extents, sampled.arrays, strict=True))
    order = FrameworkOrder(
        side.framework,
        model,
        str(side.folder or ""),
        tuple(files[extent] for extent in _order(side)),
        threads,
        False,
        sampled.input_shapes,
    )
    file = work / f"{side.name}-{side.extents[-1]}.json"
    file.write_text(json.dumps(dataclasses.asdict(order)))
    arguments = ["-m", "devices.networks.frameworks.child", str(file), str(os.getpid())]
    try:
        child = stack.enter_context(Conversation(arguments, env=bench_env(threads), start_timeout_secs=_START_SECS))
    except BenchError as problem:
        return None, [{"problem": str(problem)}] * len(side.extents)
    if "problem" in child.ready:
        return None, [child.ready] * len(side.extents)
    return child, child.ready["sets"]


def _order(side: Side) -> list[int]:
    """Return the extents of a side in the order in which its process first runs them, the largest first. If OpenVINO
    2026.4 first runs a BERT with one token, all its later outputs differ."""
    return sorted(side.extents, reverse=True)


def _judged(side: Side, extent: int, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error or the problem of a side at an extent. Raise :class:`BenchError` for a problem of ours."""
    if "problem" in told:
        problem = str(told["problem"])
    elif told["error"] < _LARGEST_ERROR:
        return {"relative_error": told["error"]}
    else:
        problem = f"it differs from what is expected by {told['error']:.2g} of the largest output"
    if side.framework == OURS:
        raise BenchError(f"{side.folder} with the extent {extent}: {problem}")
    return {"problem": problem}


def _block(child: Conversation, block_secs: float, at: int) -> Callable[[], list[float]]:
    def take() -> list[float]:
        time.sleep(_SETTLE_SECS)
        secs: list[float] = child.ask(f"{block_secs} {at}")["secs"]
        return secs

    return take
