"""Fitting the CPU analyzer anew: the objective, the search, and the module that it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.datasets import DATA
from bench.models.fit_analyzer import (
    DEVELOPMENT,
    KEPT,
    compared,
    fit,
    jittered,
    loss,
    module_text,
    objective,
    read_tasks,
    values_of,
    with_value,
)
from policies.analysis.analyzer import score
from policies.analysis.cpu.fitted import FITTED

SETS = [DATA / "strided" / "znver4-2.ftd"]


def test_the_development_sets_are_there() -> None:
    assert all((DATA / name).is_file() for name in DEVELOPMENT)


def test_constants_by_name() -> None:
    values = dict(values_of(FITTED))
    assert len(values) == 55
    assert set(values) > KEPT
    assert values["moves.cycles"] == FITTED.moves.cycles
    changed = with_value(with_value(FITTED, "moves.cycles", 7.0), "row_cycles", 3.0)
    assert (changed.moves.cycles, changed.row_cycles) == (7.0, 3.0)
    assert compared(changed) == {"moves.cycles": 7.0 / FITTED.moves.cycles, "row_cycles": 3.0 / FITTED.row_cycles}
    assert {name for name, _ in values_of(FITTED) if name in compared(jittered(FITTED, 2.0, 0))}.isdisjoint(KEPT)


def test_the_loss_does_not_see_the_level_of_a_task() -> None:
    task = read_tasks(SETS, 20)[0]
    slower = [replace(part, log_secs=part.log_secs + 3.0) for part in task]
    assert loss(slower, FITTED) == pytest.approx(loss(task, FITTED))
    exact = [
        replace(part, log_secs=np.log(score(part.sketch, part.matrix, part.device)[0]).astype(np.float64))
        for part in task
    ]
    assert loss(exact, FITTED) == 0.0


def test_a_fit_lowers_the_objective_and_keeps_facts() -> None:
    tasks = read_tasks(SETS, 12)[:2]
    start = jittered(FITTED, 1.5, 1)
    fitted, least = fit(tasks, start, steps=(1.3,))
    assert least < objective(tasks, start)
    assert least == objective(tasks, fitted)
    values, shipped = dict(values_of(fitted)), dict(values_of(FITTED))
    assert all(values[name] == shipped[name] for name in KEPT)


def test_what_is_written_is_the_module_of_these_values(tmp_path: Path) -> None:
    path = tmp_path / "fitted.py"
    path.write_text(module_text(FITTED, "Made by a test."))
    found: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), found)
    assert found["FITTED"] == FITTED
    assert found["PROVENANCE"] == "Made by a test."
