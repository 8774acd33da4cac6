"""Times a network with a dynamic dimension, networks of fixed shapes and frameworks in turn, at several extents.

Each side is a process of its own of :mod:`devices.networks.frameworks.child`, which compares its outputs with those
that are expected before it is timed.
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

# Above it a side computes something else, and its time means nothing. Relative to the largest output.
_LARGEST_ERROR = 1e-3
# Thread pools of the sides spin for a while after their last run.
_SETTLE_SECS = 0.3
_START_SECS = 1800.0
"""A side is exported, compiled for each extent and warmed up, one after the other."""


@dataclass(frozen=True)
class Sampled:
    """A network with its inputs and expected outputs at some extents."""

    dimension: str
    """Name of its dynamic dimension."""
    shapes: str
    """Its bounds and weights."""
    weights: tuple[tuple[int, float], ...]
    """The extents, ascending, and how often each comes."""
    arrays: tuple[str, ...]
    """A file for each extent."""
    input_shapes: tuple[tuple[int | str, ...], ...]
    """Shapes of its inputs, with the dimension's name."""
    frameworks: tuple[str, ...]
    """Those that are installed and may run it."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Sampled:
        """Return it from the values of a JSON object."""
        lists = {name: tuple(map(tuple, fields[name])) for name in ("weights", "input_shapes")}
        return cls(**{**fields, **lists, "arrays": tuple(fields["arrays"]), "frameworks": tuple(fields["frameworks"])})

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents, ascending."""
        return tuple(extent for extent, _ in self.weights)


@dataclass(frozen=True)
class Side:
    """What is timed: a compiled network, or a framework."""

    name: str
    """Sides with one name have other extents each."""
    framework: str
    """Name of a framework, or :data:`OURS`."""
    extents: tuple[int, ...]
    """Those at which it is timed."""
    folder: Path | None = None
    """The compiled network."""


def time_sides(
    model: str, sides: Sequence[Side], sampled: Sampled, work: Path, *, rounds: int, block_secs: float
) -> dict[int, dict[str, dict[str, Any]]]:
    """Time all sides in turn at each extent, ``rounds`` times a block of ``block_secs``.

    Returns by extent and name of the side the spread of the seconds per run (``secs``) and the ``relative_error``, or
    the ``problem`` for which it does not run. Raises :class:`BenchError` where a compiled network does not. ``work``: a
    folder for what the processes are told.
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
    """Start the process of a side; also what it tells of each extent."""
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
    """Return the extents of a side in the order in which its process first runs them, the largest first: OpenVINO
    2026.4 computes other numbers of a BERT from then on if it runs one token first."""
    return sorted(side.extents, reverse=True)


def _judged(side: Side, extent: int, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error or the problem of a side at an extent. Raises :class:`BenchError` for a problem of ours."""
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
