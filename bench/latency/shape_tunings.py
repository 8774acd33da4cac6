"""Tunings of a network with a dynamic dimension, and of the same network fixed to single extents, kept in a folder.

A finished tuning is not repeated: its figures are in a file next to its folder. An interrupted tuning starts again from
nothing, because its time must be that of a single run.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError
from fleet_tune.base.records.files.atomic_file import write_atomically

_FINISH_SECS = 1800.0


@dataclass(frozen=True)
class Tunings:
    """Tunings of one network, all with the same budget and seed."""

    folder: Path
    model: str
    budget_secs: float
    seed: int

    def take(self, name: str, shapes: str) -> dict[str, Any]:
        """Return the figures of :mod:`bench.tuning.tune_process` for the network with ``shapes``, tuned into the folder
        ``name``. If an earlier call finished this tuning, return its figures.

        Raise :class:`BenchError` if the folder holds another tuning or something else.
        """
        out, file = self.folder / name, self.folder / f"{name}.json"
        asked = {"model": self.model, "shapes": shapes, "budget_secs": self.budget_secs, "seed": self.seed}
        elsewhere = "name another folder with --out, or remove it"
        if file.exists():
            kept = json.loads(file.read_text())
            if kept["asked"] != asked:
                raise BenchError(f"{out} is of another network, budget or seed ({kept['asked']}): {elsewhere}")
            if kept["figures"] is not None:
                figures: dict[str, Any] = kept["figures"]
                return figures
            shutil.rmtree(out, ignore_errors=True)  # of an interrupted tuning
        elif out.exists():
            raise BenchError(f"{out} is no folder of this benchmark: {elsewhere}")
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(file, {"asked": asked, "figures": None})
        bounds, _, weights = shapes.partition(";")
        arguments = ["-m", "bench.tuning.tune_process", self.model, str(out)]
        arguments += ["--budget-secs", str(self.budget_secs), "--seed", str(self.seed), "--shapes", bounds]
        arguments += ["--shapes-weights", weights.strip()] if weights else []
        figures = run_json(arguments, env=bench_env(cores()), timeout_secs=self.budget_secs + _FINISH_SECS)
        _write(file, {"asked": asked, "figures": figures})
        return figures


def _write(file: Path, body: dict[str, Any]) -> None:
    write_atomically(file, json.dumps(body).encode())
