"""A file that caches the runs of a replay, so that a long replay can be made in parts.

The result of a run depends only on its method, the dataset, the task and the seed. Each line of the file has these and
the result of one run. A run is found by the method's parts and numbers, not by its name in a table, and by the code
that made the run: runs of other code are made again. A file may have several kinds of runs, each with its own lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from bench.dependencies import code_digest
from bench.replay.replay_runs import Course, Replayed
from bench.result import BenchError
from policies.search.methods import Method

Run = TypeVar("Run")
Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Kind(Generic[Run]):
    """A kind of run, and how its runs are stored."""

    name: str
    """Name of the kind in the file; empty for runs of one task."""
    fields: Callable[[Run], Mapping[str, Any]]
    """Returns the values of a run, in a form that :func:`json.dumps` takes."""
    run: Callable[[Mapping[str, Any]], Run]
    """Makes the run from its values."""


REPLAYED: Kind[Replayed] = Kind(
    "",
    lambda run: {"trials": run.trials, "trial_secs": run.trial_secs, "uninformed": run.uninformed},
    lambda line: Replayed(line["trials"], line["trial_secs"], (), line["uninformed"]),
)
"""Runs of one task, without their curves."""
COURSES: Kind[Course] = Kind(
    "course",
    lambda run: {"trials": run.trials, "steps": run.steps},
    lambda line: Course(line["trials"], tuple((trial, value) for trial, value in line["steps"])),
)
"""Runs of all tasks together. Their key has the names of all tasks and the number of trials in place of the task."""


class RunCache(Generic[Run]):
    """The runs of one dataset and kind in the file ``path``, which is created when the first run is added. If ``path``
    is None, nothing is cached."""

    def __init__(self, path: Path | None, dataset: Path, kind: Kind[Run], code: str = "") -> None:
        """``code``: the digest of the code that makes the runs (:func:`bench.dependencies.code_digest`).

        Raises :class:`BenchError` if a line of the file is not a run.
        """
        self._path = path
        self._code = code
        self._dataset = hashlib.blake2b(dataset.read_bytes(), digest_size=8).hexdigest()
        self._kind = kind
        self._runs: dict[Key, Run] = {}
        if path is None or not path.exists():
            return
        for number, text in enumerate(path.read_text().splitlines(), 1):
            try:
                line = json.loads(text)
                key = (line["dataset"], line["method"], line["task"], line["seed"])
                if line.get("kind", "") == kind.name and line.get("code", "") == code:
                    self._runs[key] = kind.run(line)
            except (ValueError, KeyError, TypeError) as error:
                raise BenchError(f"{path}: line {number} is no run of a replay ({error!r}): remove it") from error

    def find(self, method: Method, task: str, seed: int) -> Run | None:
        """Return a run, or None if the file does not have it."""
        return self._runs.get((self._dataset, digest(method), task, seed))

    def add(self, method: Method, task: str, seed: int, run: Run) -> None:
        """Append a run to the file."""
        if self._path is None:
            return
        about = {"dataset": self._dataset, "method": digest(method), "task": task, "seed": seed}
        about |= {name: value for name, value in (("kind", self._kind.name), ("code", self._code)) if value}
        with self._path.open("a") as file:
            file.write(json.dumps({**about, **self._kind.fields(run)}) + "\n")


def cache_code(path: Path | None, module: str) -> str:
    """Return the digest of the code of a benchmark's ``module``, for runs that are cached in ``path``; empty without a
    path."""
    return "" if path is None else code_digest(module)


def digest(method: Method) -> str:
    """Return the digest of all parts and numbers of a method except its name."""
    return hashlib.blake2b(repr(method).replace(repr(method.name), "", 1).encode(), digest_size=8).hexdigest()
