"""Runs of a replay that are kept in a file, so that a long one can be made in parts.

A run follows from its method, the dataset, the setting of the replay, the task and the seed alone: each line of the
file is one, with these and what came of it. It is found by the whole method (all of its parts and numbers), whatever a
table calls it; a change of the code that a method's numbers do not show is not seen: then begin a new file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Generic, TypeVar

from bench.result import BenchError
from bench.search.open_runs import OpenRun
from bench.search.replay_runs import NOT_KEPT, Replayed
from policies.search.methods import Method

Key = tuple[str, str, str, int]
Run = TypeVar("Run", Replayed, OpenRun)


class KeptRuns(Generic[Run]):
    """The runs of one dataset in ``path``, which is made when the first is added; none are kept where it is None.

    ``kind``: what came of a run, of which all fields are kept but those marked :data:`NOT_KEPT`. ``setting``: of the
    replay, what else a run follows from, in words.
    """

    def __init__(self, path: Path | None, dataset: Path, kind: type[Run], setting: str = "") -> None:
        self._path = path
        self._dataset = hashlib.blake2b(dataset.read_bytes() + setting.encode(), digest_size=8).hexdigest()
        self._kept = [each.name for each in fields(kind) if each.metadata != NOT_KEPT]
        self._runs: dict[Key, Run] = {}
        if path is None or not path.exists():
            return
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                run = json.loads(line)
                key = (run["dataset"], run["method"], run["task"], run["seed"])
                if run["dataset"] == self._dataset:  # of another setting, a run may have other fields
                    self._runs[key] = kind(**{name: run[name] for name in self._kept})
            except (ValueError, KeyError, TypeError) as error:
                raise BenchError(f"{path}: line {number} is no run of a replay ({error!r}): remove it") from error

    def find(self, method: Method, task: str, seed: int) -> Run | None:
        """What came of a run, without what is not kept; None where it was not made yet."""
        return self._runs.get((self._dataset, digest(method), task, seed))

    def add(self, method: Method, task: str, seed: int, run: Run) -> None:
        """Write one down."""
        if self._path is None:
            return
        line = {
            "dataset": self._dataset,
            "method": digest(method),
            "task": task,
            "seed": seed,
            **{name: getattr(run, name) for name in self._kept},
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def digest(method: Method) -> str:
    """Of all parts and numbers of a method, but its name."""
    return hashlib.blake2b(repr(method).replace(repr(method.name), "", 1).encode(), digest_size=8).hexdigest()
