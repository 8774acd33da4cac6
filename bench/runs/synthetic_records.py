"""Synthetic records for the record store: tasks and sketches of a dataset, with traces as long as those of a run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from bench.datasets import read
from bench.result import BenchError
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record, Task


def tasks_of(dataset: Path) -> list[Task]:
    """Return the tasks of a dataset."""
    return [data.task for data in read(dataset)]


def best_records(dataset: Path) -> list[Record]:
    """Return a record for each task that is faster than all of :func:`records`, with a trace that TVM can apply. It has
    the first candidate of the dataset that TVM can schedule; a task without such a candidate is left out."""
    from devices.sketches.spaces import DesignSpace, ScheduleError

    found = []
    for data in read(dataset):
        space = DesignSpace(data.task)
        for candidate in map(data.candidate, range(len(data))):
            try:
                trace = space.schedule(candidate).trace
            except ScheduleError:
                continue
            measurement = Measurement(Outcome.OK, (1e-6,) * 3, stopped="raced", verified=True)
            found.append(Record(f"best-{candidate.id}", "run", candidate, trace, measurement, "board-0", 1.7e9))
            break
    return found


def records(dataset: Path, run_id: str = "run", seed: int = 0) -> Iterator[Record]:
    """Yield records without end, with random decisions, for one sketch after the other.

    A trace is the text of the sketch's trace, five times, with the decisions spread over it. That makes it about as
    long as a trace of TVM, which goes on with the instructions of the post-processors, and lets it compress about as
    well (a convolution's trace has 6 to 10 kB, and 140 to 380 bytes after compression). Raises :class:`BenchError` if
    no sketch of the dataset has a trace.
    """
    rng = random.Random(seed)
    sketches = [(data.task.id, sketch) for data in read(dataset) for sketch in data.sketches if sketch.trace_text]
    if not sketches:
        raise BenchError(f"{dataset} has no sketch with a trace")
    for number in itertools.count():
        task_id, sketch = sketches[number % len(sketches)]
        decisions = tuple(rng.randrange(1, 65) for _ in range(sketch.width))
        measurement = Measurement(
            Outcome.OK,
            tuple(1e-3 * rng.lognormvariate(0.0, 0.5) for _ in range(3)),
            build_secs=rng.random(),
            measure_secs=rng.random(),
            stopped="raced",
            verified=True,
            speed=rng.uniform(0.9, 1.1),
            speed_error=rng.uniform(0.0, 0.02),
        )
        candidate = Candidate(task_id, sketch.index, sketch.id, decisions)
        apart = -(-len(sketch.trace_text) // len(decisions))
        parts = [sketch.trace_text[at * apart : (at + 1) * apart] for at in range(len(decisions))]
        trace = "".join(f"{part} {decision} " for part, decision in zip(5 * parts, 5 * decisions, strict=True))
        yield Record(
            f"{run_id}-{candidate.id}-{number}", run_id, candidate, trace, measurement, f"board-{number % 100}", 1e9
        )
