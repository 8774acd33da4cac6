"""The result of a benchmark or its error, and medians with their spread."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.machine import machine


class BenchError(Exception):
    """A side of a benchmark did not deliver its figure: there is no result to report."""


@dataclass(frozen=True)
class BenchResult:
    """One benchmark's outcome."""

    bench: str
    """Name of the benchmark."""
    ours: float | None
    """Our figure in ``unit``; None if the machine lacks what the benchmark needs: ``details`` has the ``reason``."""
    peer: float | None
    """The same figure of the peer; None if there is nothing to compare with."""
    ratio: float | None
    """Comparison of both: above 1 is better for us."""
    unit: str
    """Unit of ``ours`` and ``peer``."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """All other figures, as values of JSON."""

    def to_json(self) -> str:
        """One line of JSON with the keys in the documented order; figures rounded to 5 digits."""
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
        """Text for people: the figures in a line, then the details."""
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
    """Median, extremes and number of ``samples`` (at least one); in the samples' unit."""
    if not samples:
        raise BenchError("no samples were taken")
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "count": len(samples)}


def interleave(rounds: int, sides: Mapping[str, Callable[[], Sequence[float]]]) -> dict[str, list[float]]:
    """Calls every side once a round, in turn, and collects the samples: drift of a shared machine hits all alike."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, take in sides.items():
            samples[name].extend(take())
    return samples
