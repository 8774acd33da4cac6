"""Ansor's cost model: a sum over statements, weighed by throughput, of what follows from the program alone."""

from __future__ import annotations

import numpy as np
import pytest

from policies.cost_models.statement_trees import StatementTreesModel, _SumOfStatements
from policies.features.statements import NAMES, PROGRAM_NAMES
from policies.features.table import FeatureTable


def test_the_derivatives_of_its_loss_by_hand() -> None:
    # Two statements of a record with throughput 1 and one of a record with 0.5, each weighed by its throughput.
    loss = _SumOfStatements(np.array([0, 0, 1]), np.array([1.0, 0.5]), np.array([1.0, 0.5]))
    slope, curve = loss(np.array([0.2, 0.3, 0.1]), None)
    assert slope.tolist() == pytest.approx([-0.5, -0.5, -0.2])  # 0.2 + 0.3 - 1 twice, and 0.5 (0.1 - 0.5)
    assert curve.tolist() == [1.0, 1.0, 0.5]


def programs(count: int, statements: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    view = np.zeros((count, 8, len(PROGRAM_NAMES)), dtype=np.float32)
    view[:, :statements] = rng.random((count, statements, len(PROGRAM_NAMES)))
    view[:, :statements, 0] = 1.0
    return view


def test_a_programs_score_is_the_sum_of_its_statements() -> None:
    view = programs(200, 2, 0)
    throughput = 0.1 + view[:, :, 5].sum(axis=1).astype(np.float64)  # each statement adds what its sixth column says
    model = StatementTreesModel(0)
    model.fit(FeatureTable({"statements": view}), -np.log(throughput), np.zeros(200, dtype=np.int64))
    both = programs(50, 2, 1)
    first, second = both.copy(), both.copy()
    first[:, 1] = 0.0
    second[:, 0] = second[:, 1]
    second[:, 1] = 0.0
    scores = [model._scores(model._matrix(FeatureTable({"statements": each}))) for each in (both, first, second)]
    assert scores[0] == pytest.approx(scores[1] + scores[2], abs=1e-5)
    assert np.corrcoef(-scores[0].mean(axis=0), both[:, :, 5].sum(axis=1))[0, 1] > 0.9


def test_the_analyzer_has_no_say() -> None:
    assert NAMES[: len(PROGRAM_NAMES)] == PROGRAM_NAMES
    assert NAMES[len(PROGRAM_NAMES)] == "s1"
    assert not any(name.startswith(("cpu.", "cuda.", "l0_", "log_peak")) for name in PROGRAM_NAMES)
    assert StatementTreesModel.views == ("statements",)


def test_undescribed_programs_are_borne() -> None:
    view = programs(20, 1, 3)
    view[::2] = 0.0
    model = StatementTreesModel(0)
    model.fit(FeatureTable({"statements": view}), np.linspace(-9, -7, 20), np.zeros(20, dtype=np.int64))
    assert np.isfinite(model.predict(FeatureTable({"statements": view}))[0]).all()
