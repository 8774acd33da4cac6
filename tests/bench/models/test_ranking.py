"""Top-k over the tasks of a network by hand."""

from __future__ import annotations

import pytest

from bench.models.ranking import weighted_top_k


def test_over_tasks_it_is_weighted_by_how_often_they_run() -> None:
    # (2 * 1 + 3 * 2) / (4 * 1 + 3 * 2) = 8 / 10
    assert weighted_top_k([2.0, 3.0], [4.0, 3.0], [1.0, 2.0]) == pytest.approx(0.8)
    assert weighted_top_k([2.0, 3.0], [2.0, 3.0], [1.0, 2.0]) == 1.0
