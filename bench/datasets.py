"""The datasets of the offline benchmarks: their paths, short names of their tasks, their rows as observations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.inputs import note_input
from bench.networks.resnet18_table import name_of
from bench.result import BenchError
from fleet_tune.base.errors import UserError
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.task_data import Dataset, TaskData
from policies.search.search import Observation

DATA = Path(__file__).parent / "data"
OTHER_CLASS = DATA / "other-class" / "avx2-1.ftd"
"""The tasks of the dataset in ``bench/data``, measured on another device class."""

Rows = NDArray[np.int64]


def dataset_path(given: Path | None) -> Path:
    """Return ``given``, or else the only file in ``bench/data``. Raises :class:`BenchError` unless there is exactly one
    file."""
    if given is not None:
        return given.absolute()
    return _only_file(DATA, "--dataset")


def other_tasks_path(given: Path | None) -> Path:
    """Return ``given``, or else the only file in ``bench/data/other-tasks``, which has other tasks than the one in
    ``bench/data``. The analyzer's errors on these tasks have been examined, so they are not a test set for it. Raises
    :class:`BenchError` unless there is exactly one file."""
    return given.absolute() if given is not None else _only_file(DATA / "other-tasks", "--other-tasks")


def _only_file(folder: Path, option: str) -> Path:
    datasets = sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith(("README", ".")))
    if len(datasets) != 1:
        raise BenchError(f"{len(datasets)} datasets in {folder}: name one with {option}")
    return datasets[0]


def read(path: Path) -> Dataset:
    """Return the dataset at ``path``. Raises :class:`BenchError` if it cannot be read, or if it has a task without a
    successful candidate."""
    try:
        dataset = load(note_input(path))
    except UserError as error:
        raise BenchError(str(error)) from error
    for data in dataset:
        if not data.ok.any():
            raise BenchError(f"{path}: no candidate of {data.task.workload.name} ran")
    return dataset


def labels(dataset: Dataset) -> tuple[str, ...]:
    """Return a name for each task: its workload's name without the compiler's affixes, numbered if several are equal.
    If AutoTVM's paper names the workload, this name comes first (``C2 conv2d 56x56x64``)."""
    names = [" ".join(filter(None, (name_of(data.task.workload), _plain(data.task.workload.name)))) for data in dataset]
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if names.count(name) == 1 else f"{name}.{seen[name]}")
    return tuple(unique)


def _plain(name: str) -> str:
    return name.removeprefix("fused_").replace("expand_dims_", "")


def pick(names: Sequence[str], parts: Iterable[str]) -> tuple[int, ...]:
    """Return one position for each of ``parts``: the first task whose name contains the part and that no earlier part
    has taken. Return all positions if ``parts`` is empty. A name whose first word equals the part is preferred: ``C1``
    is not ``C10``.

    Raises :class:`BenchError` for a part that no remaining name contains.
    """
    wanted = list(parts)
    if not wanted:
        return tuple(range(len(names)))
    positions: list[int] = []
    for part in wanted:
        found = [at for at, name in enumerate(names) if part in name and at not in positions]
        if not found:
            raise BenchError(f"no task of the dataset is called {part!r}: {', '.join(names)}")
        positions.append(next((at for at in found if names[at].split()[0] == part), found[0]))
    return tuple(positions)


@dataclasses.dataclass(frozen=True)
class RecordedTrial(Observation):
    """An observation with the seconds that its trial took when it was recorded."""

    build_secs: float = 0.0
    """Seconds to build the candidate."""
    measure_secs: float = 0.0
    """Seconds to measure the candidate."""

    @property
    def trial_secs(self) -> float:
        """Seconds to build and measure the candidate."""
        return self.build_secs + self.measure_secs


def observations(data: TaskData, rows: Sequence[int] | Rows) -> list[RecordedTrial]:
    """Return the measured candidates at ``rows`` as the observations that a search gets."""
    observed = []
    for row in rows:
        candidate = data.candidate(int(row))
        build_secs, measure_secs = float(data.build_secs[row]), float(data.measure_secs[row])
        trial = RecordedTrial(
            candidate.sketch,
            candidate.decisions,
            float(data.cost_secs[row]),
            build_secs=build_secs,
            measure_secs=measure_secs,
        )
        observed.append(trial)
    return observed


def with_enough(dataset: Dataset, calibration: int, limit: int | None = None) -> tuple[int, ...]:
    """Return the positions of the tasks with more than ``calibration`` candidates, of which :func:`split` leaves some
    to explore. Raises :class:`BenchError` if there is no such task."""
    positions = tuple(at for at, data in enumerate(dataset) if _used(data, limit) > calibration)
    if not positions:
        raise BenchError(f"no task has more than {calibration} candidates: a lower --calibration, or a higher --limit")
    return positions


def _used(data: TaskData, limit: int | None) -> int:
    return len(data) if limit is None else min(limit, len(data))


def split(data: TaskData, seed: int, calibration: int, limit: int | None = None) -> tuple[Rows, Rows]:
    """Split the first ``limit`` candidates (all if None). Return the rows of ``calibration`` random records, and the
    rows of all others: the explored set.

    Raises :class:`BenchError` if the explored set would be empty.
    """
    count = _used(data, limit)
    if count <= calibration:
        raise BenchError(f"{data.task.workload.name}: {count} candidates are too few for {calibration} records")
    order = np.random.default_rng([seed, 64]).permutation(count)
    return np.sort(order[:calibration]), np.sort(order[calibration:])


def first(data: TaskData, limit: int | None) -> TaskData:
    """Return the data of only the first ``limit`` candidates; of all if ``limit`` is None."""
    if limit is None or limit >= len(data):
        return data
    counts = [int((data.rows(at) < limit).sum()) for at in range(len(data.sketches))]
    return dataclasses.replace(
        data,
        sketch_of=data.sketch_of[:limit],
        decisions=tuple(matrix[:count] for matrix, count in zip(data.decisions, counts, strict=True)),
        run_secs=data.run_secs[:limit],
        build_secs=data.build_secs[:limit],
        measure_secs=data.measure_secs[:limit],
        outcome=data.outcome[:limit],
        details=data.details[:limit],
    )


def best_of_share(scores: NDArray[np.float64], cost_secs: NDArray[np.float64], share: int) -> float:
    """Return the latency in seconds of the best candidate among the ``1 / share`` with the lowest scores (at least one
    candidate). Candidates with equal scores stay in their order."""
    chosen = np.argsort(scores, kind="stable")[: max(len(scores) // share, 1)]
    return float(cost_secs[chosen].min())
