"""A schedule that is applied to fewer rows: its decisions by hand, its time, and what a draft makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Sketch, Tile
from policies.analysis.analyzer import latency_secs
from policies.analysis.cpu.fewer_rows import applied, time_over_rows
from policies.search.draft import draft, evaluate
from policies.search.methods import method_named
from policies.search.search import Observation, TaskSearch
from tests.helpers.dynamic_rows import over_rows, product


def test_decisions_become_what_fits_fewer_rows() -> None:
    sketch = replace(product(64), decisions=(Tile(64, 3, 64), Choice("unroll", (0, 16)), Tile(512, 2, 512)))
    other = replace(sketch, decisions=(Tile(8, 3, 8), *sketch.decisions[1:]))
    matrix = np.array([[8, 2, 4, 1, 64, 8], [2, 16, 2, 0, 2, 256], [1, 1, 64, 0, 1, 512], [64, 1, 1, 1, 512, 1]])
    assert applied(sketch, other, matrix).tolist() == [
        [1, 2, 4, 1, 64, 8],  # 8 / 4 / 2
        [1, 4, 2, 0, 2, 256],  # 16 does not divide 4: all of it
        [1, 1, 8, 0, 1, 512],  # 64 does not divide 8
        [8, 1, 1, 1, 512, 1],
    ]
    other = replace(sketch, decisions=(Tile(28, 3, 64), *sketch.decisions[1:]))
    assert applied(sketch, other, matrix)[:, :3].tolist() == [[7, 1, 4], [1, 14, 2], [1, 1, 28], [28, 1, 1]]
    assert applied(sketch, other, np.array([[1, 8, 8, 0, 1, 512]]))[:, :3].tolist() == [[1, 4, 7]]


def test_the_time_over_rows_by_hand(cpu: DeviceAbstraction) -> None:
    """Two threads. Blocks of 32 rows: both are busy for 64 rows, one for 8 rows, which are half of the work beside."""
    sketch = over_rows(0.5)
    matrix = np.array([[2, 8, 4, 1, 32], [2, 8, 4, 2, 16], [1, 16, 4, 1, 32], [32, 1, 2, 1, 32]])
    # (1 + 0.5 * 2) / 1.5; both busy through the columns; one thread for all; 4 blocks of 2 rows.
    assert time_over_rows(sketch, matrix, cpu).tolist() == pytest.approx([2 / 1.5, 1, 1, 1])
    assert time_over_rows(product(64), matrix, cpu).tolist() == [1, 1, 1, 1]
    expected = latency_secs(product(64), matrix, cpu) * time_over_rows(sketch, matrix, cpu)
    assert latency_secs(sketch, matrix, cpu) == pytest.approx(expected, rel=1e-5)


def test_a_draft_prefers_what_keeps_all_threads_busy_for_few_rows(cpu: DeviceAbstraction) -> None:
    """Blocks of 32 rows keep all threads busy for 64, and are one thread's work for 8."""

    def idle(found: Sketch) -> float:
        """The share of the best candidates that leave threads idle for few rows."""
        best = draft(found, cpu, np.random.default_rng(0)).matrix[:8]
        few = applied(found, product(8), best)
        return float(np.mean(few[:, 0] * few[:, 3] < cpu.cores))

    assert idle(over_rows(0.5)) == 0
    assert idle(product(64)) > 0


def test_a_search_ranks_what_it_measured_over_all_numbers_of_rows(cpu: DeviceAbstraction) -> None:
    """A schedule that is 10% faster for 64 rows, and slower by a third over all, is not the best one."""
    rows, columns = (2, 8, 4, 1, 32), (2, 8, 4, 2, 16)
    search = TaskSearch((over_rows(0.5),), 1e6, cpu, method_named("fleet"), np.random.default_rng(0))
    search.observe([Observation(0, rows, 0.9e-5)])
    assert search.best_secs == pytest.approx(0.9e-5 * 2 / 1.5)
    search.observe([Observation(0, columns, 1e-5)])
    assert search.best_secs == pytest.approx(1e-5)
    proposals = search.propose(64)
    assert proposals
    for each in proposals:
        assert 0 < each.predicted_secs < 1e-4, "what is predicted is what is measured: the time of the most rows"


@pytest.mark.parametrize("method", ["fleet", "random"])
def test_every_prediction_of_a_batch_is_of_what_is_measured(cpu: DeviceAbstraction, method: str) -> None:
    """Of candidates that are chosen, and of random ones."""
    sketch = over_rows(0.5)
    search = TaskSearch((sketch,), 1e6, cpu, method_named(method), np.random.default_rng(0))
    search.observe([Observation(0, (2, 8, 4, 2, 16), 1e-5)])
    proposals = search.propose(64)
    assert {each.reason == "random" for each in proposals} == {method == "random"}
    matrix = np.array([each.decisions for each in proposals])
    times = time_over_rows(sketch, matrix, cpu)
    assert 0 < sum(times > 1) < len(times)
    drafted = evaluate(sketch, matrix, cpu)
    over_all, _ = search._predictor.predict(0, matrix, drafted.features, drafted.analytic_log_secs)
    assert [each.predicted_secs for each in proposals] == pytest.approx((np.exp(over_all) / times).tolist())
