"""The result of a benchmark, its error, and medians with their spread."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.machine import machine


class BenchError(Exception):
    """A benchmark or its command cannot give a result, for example because one side failed."""


@dataclass(frozen=True)
class BenchResult:
    """The result of one benchmark."""

    bench: str
    """Name of the benchmark."""
    ours: float | None
    """Our figure in ``unit``; None if the machine lacks something that the benchmark needs. ``details`` then has the
    ``reason``."""
    peer: float | None
    """The same figure of the peer; None if there is no peer."""
    ratio: float | None
    """Ratio of both figures: above 1 is better for us."""
    unit: str
    """Unit of ``ours`` and ``peer``."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """All other figures, as JSON values."""

    def to_json(self) -> str:
        """Return one line of JSON with the keys in the documented order, figures rounded to 5 significant digits, and
        the machine added to ``details``."""
        body = {
            "bench": self.bench,
            "ours": _round(self.ours),
            "peer": _round(self.peer),
            "ratio": _round(self.ratio),
            "unit": self.unit,
            "details": _round({**self.details, "machine": machine()}),
        }
        return json.dumps(body)

    def to_text(self) -> str:
        """Return text for people: a line with the figures, then the details."""
        if self.ours is None:
            return f"{self.bench}: skipped: {self.details['reason']}"
        peer = "" if self.ratio is None else f", peer {self.peer:.4g} {self.unit}, ratio {self.ratio:.2f}"
        details = json.dumps(json.loads(self.to_json())["details"], indent=2)
        return f"{self.bench}: ours {self.ours:.4g} {self.unit}{peer}\n{details}"


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {str(key): _round(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    return value


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Return the median, the extremes and the number of ``samples``, in the unit of the samples. Raises
    :class:`BenchError` if there are no samples."""
    if not samples:
        raise BenchError("no samples were taken")
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "count": len(samples)}


def interleave(rounds: int, sides: Mapping[str, Callable[[], Sequence[float]]]) -> dict[str, list[float]]:
    """Call every side once in each round, in turn, and return the samples of each side. In this way, a shared machine
    that becomes slower or faster affects all sides alike."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, take in sides.items():
            samples[name].extend(take())
    return samples
