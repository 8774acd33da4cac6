"""The training table: what a learner makes of records, without a search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.cpu import fewer_rows
from policies.analysis.cpu.fewer_rows import time_over_rows
from policies.arrays import Floats, Matrix
from policies.search.task_records import Observation
from policies.search.training_table import TrainingTable
from policies.space.sampling import sample, unique_rows
from tests.helpers.dynamic_rows import over_rows, product


def records(sketches: tuple[Sketch, ...], count: int = 6) -> list[Observation]:
    observations = []
    for at, sketch in enumerate(sketches):
        rows = sample(sketch, 4 * count, np.random.default_rng(at))
        for number, row in enumerate(rows[unique_rows(rows)][:count]):
            observations.append(Observation(at, tuple(map(int, row)), math.inf if number == 2 else 1e-3 * (1 + number)))
    return observations


def test_rows_are_in_the_order_of_observation_and_failures_are_slow(
    tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction
) -> None:
    sketches = (tiled, blocked)
    table = TrainingTable(sketches, cpu)
    assert len(table.features) == len(table.log_secs) == len(table.analytic_log_secs) == 0
    assert table.best_secs == math.inf
    observed = records(sketches)
    for each in observed:
        table.observe([each])
    table.observe(observed)  # nothing new
    assert table.best_secs == 1e-3
    training = table.training_set()
    assert len(training.features) == len(training.log_secs) == len(table.analytic_log_secs) == 12
    assert training.groups.tolist() == [0] * 12
    assert training.log_secs[0] == pytest.approx(math.log(1e-3))
    assert training.log_secs[2] == training.log_secs.max() == pytest.approx(math.log(2 * 6e-3))
    assert training.names == table.layout.names
    first = table.described(0, np.array([observed[0].decisions]), np.zeros((1, len(table.layout.positions[0])), "f4"))
    assert first.views == ("symbolic",) or set(first.views) == {"symbolic"}
    column = training.offset_column
    assert column is not None
    np.testing.assert_allclose(training.features.view("symbolic")[:, column], table.analytic_log_secs, rtol=1e-5)


def test_a_revised_cost_changes_the_targets(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    table = TrainingTable((tiled,), cpu)
    (first, *_) = observed = records((tiled,))
    table.observe(observed)
    table.observe([Observation(0, first.decisions, 5.0, revised=True)])
    assert table.log_secs[0] == pytest.approx(math.log(5.0))
    assert table.best_secs == 2e-3


def test_views_are_those_that_were_asked_for(tiled: Sketch, undescribed: Sketch, cpu: DeviceAbstraction) -> None:
    table = TrainingTable((tiled,), cpu, ("statements", "invariant"))
    table.observe(records((tiled,)))
    assert set(table.training_set().features.views) == {"symbolic", "statements", "invariant"}
    mixed = TrainingTable((undescribed,), cpu)
    mixed.observe(records((undescribed,)))
    assert mixed.training_set().offset_column is None
    assert np.isnan(mixed.analytic_log_secs).all()


def test_times_over_all_numbers_of_rows_are_the_same_one_at_a_time_and_together(
    cpu: DeviceAbstraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they are worked out at once, each once, and none of what failed."""
    asked: list[list[list[int]]] = []

    def counted(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
        asked.append(matrix.tolist())
        return time_over_rows(sketch, matrix, device)

    monkeypatch.setattr(fewer_rows, "time_over_rows", counted)
    sketches = over_rows(0.5), replace(product(32), index=1)
    observed = [
        each for pair in zip(*(records(sketches[at : at + 1], 40) for at in (0, 1)), strict=True) for each in pair
    ]
    observed = [replace(each, sketch=number % 2) for number, each in enumerate(observed)]
    one_by_one, together = (TrainingTable(sketches, cpu) for _ in range(2))
    for each in observed:
        one_by_one.observe([each])
    alone, asked[:] = [row for rows in asked for row in rows], []
    together.observe(iter(observed))
    assert asked == [alone]
    assert together.records.costs == one_by_one.records.costs
    measured = {each.decisions: each.cost_secs for each in observed if each.sketch == 0}
    ran = [decisions for decisions, secs in measured.items() if math.isfinite(secs)]
    assert alone == [list(each) for each in ran]
    times = time_over_rows(sketches[0], np.array(ran), cpu)
    costs = [together.records.costs[0][together.records.key(0, each)] for each in ran]
    assert costs == pytest.approx([measured[each] * time for each, time in zip(ran, times, strict=True)])
    assert 0 < sum(times > 1) < len(times)
    asked.clear()
    faster = replace(observed[0], cost_secs=observed[0].cost_secs / 2)
    together.observe([faster, *observed])
    assert asked == [], "what is known"
    assert together.records.costs[0][together.records.key(0, faster.decisions)] == pytest.approx(costs[0] / 2)


def test_other_candidates_are_refused(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    with pytest.raises(ValueError, match="no sketch 5"):
        TrainingTable((tiled,), cpu).observe([Observation(5, (1,), 1.0)])
    with pytest.raises(ValueError, match="has 5 columns, got 2 decisions"):
        TrainingTable((over_rows(0.5),), cpu).observe([Observation(0, (1, 2), 1.0)])


def test_knobs_are_the_decisions_alone(tiled: Sketch, blocked: Sketch, cpu: DeviceAbstraction) -> None:
    table = TrainingTable((tiled, blocked), cpu, ("knobs",))
    names = [table.layout.names[at] for at in table.layout.knobs]
    assert {name.split(".")[0] for name in names} == {"tile", "choice", "sketch"}
    assert len(names) < len(table.layout.names)
    rows = sample(blocked, 5, np.random.default_rng(0))
    table.observe([Observation(1, tuple(map(int, row)), 1e-3) for row in rows])
    knobs = table.features.view("knobs")
    assert knobs.shape == (5, len(names))
    # The other sketch's tiles are missing; its own are there, as the logarithms of their factors.
    mine = np.isfinite(knobs[0])
    assert sorted(knobs[0, mine][:-2].tolist()) == sorted(np.log2(rows[0]).astype(np.float32).tolist())
    assert knobs[0, -2:].tolist() == [0.0, 1.0]
