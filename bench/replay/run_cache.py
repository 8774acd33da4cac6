"""Runs of a replay that are kept in a file, so that a long one can be made in parts.

A run follows from its method, the dataset, the task and the seed alone: each line of the file is one, with these and
what came of it. It is found by the whole method (all of its parts and numbers), whatever a table calls it, and by the
code that made it: runs of other code are made again. Several kinds of runs have each their own lines in a file.
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
    """Name in the file; empty for runs of one task."""
    fields: Callable[[Run], Mapping[str, Any]]
    """Values of a run as :func:`json.dumps` takes them."""
    run: Callable[[Mapping[str, Any]], Run]
    """The run, made of its values again."""


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
"""Runs of all tasks together: their names and the number of trials stand for the task."""


class RunCache(Generic[Run]):
    """The runs of one dataset and kind in ``path``, which is made when the first is added; none are kept where it is
    None."""

    def __init__(self, path: Path | None, dataset: Path, kind: Kind[Run], code: str = "") -> None:
        """``code``: the digest of the code that makes the runs (:func:`bench.dependencies.code_digest`)."""
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
        """Return a run; None if it was not made yet."""
        return self._runs.get((self._dataset, digest(method), task, seed))

    def add(self, method: Method, task: str, seed: int, run: Run) -> None:
        """Write one down."""
        if self._path is None:
            return
        about = {"dataset": self._dataset, "method": digest(method), "task": task, "seed": seed}
        about |= {name: value for name, value in (("kind", self._kind.name), ("code", self._code)) if value}
        with self._path.open("a") as file:
            file.write(json.dumps({**about, **self._kind.fields(run)}) + "\n")


def cache_code(path: Path | None, module: str) -> str:
    """The digest of the code of a benchmark's ``module`` for runs that are kept in ``path``; empty if none are."""
    return "" if path is None else code_digest(module)


def digest(method: Method) -> str:
    """Digest of all parts and numbers of a method except its name."""
    return hashlib.blake2b(repr(method).replace(repr(method.name), "", 1).encode(), digest_size=8).hexdigest()
