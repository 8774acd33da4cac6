"""LambdaRank against numbers worked out by hand, and what it asks of the order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from policies.cost_models.lambda_rank import fastest_of_group, lambda_rank, relevance


def loss_of(scores: list[float], labels: list[float]) -> float:
    return float(lambda_rank(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels, dtype=torch.float64)))


def test_two_records_in_the_wrong_order() -> None:
    # Sorted by score: labels 1/2, 1. D = log2 2 = 1, log2 3 = 1.584963. Gains 2^y - 1 = 0.414214, 1.
    # Best DCG = 1 / 1 + 0.414214 / 1.584963 = 1.261340; G = 0.328392, 0.792808; |dG| = 0.464416.
    # |1 / D1 - 1 / D2| = 0.369070; w = 0.171402. -log2 sigmoid(0 - 1) = log2(1 + e) = 1.894637.
    assert loss_of([0.0, 1.0], [1.0, 0.5]) == pytest.approx(0.464416 * 0.369070 * 1.894637, rel=1e-5)
    assert loss_of([0.0, 1.0], [1.0, 0.5]) == pytest.approx(0.324745, abs=2e-6)


def test_two_records_in_the_right_order() -> None:
    # The same weight; -log2 sigmoid(1) = log2(1 + 1/e) = 0.451942.
    assert loss_of([1.0, 0.0], [1.0, 0.5]) == pytest.approx(0.464416 * 0.369070 * 0.451942, rel=1e-5)


def test_three_records() -> None:
    # Labels 1, 1/2, 1/4 with scores 0, 0.5, -1: ranks 2, 1, 3; D = 1.584963, 1, 2; 2^y - 1 = 1, 0.414214, 0.189207.
    # Best DCG = 1 + 0.414214 / 1.584963 + 0.189207 / 2 = 1.355944; G = 0.737494, 0.305480, 0.139539.
    def term(gains: float, discounts: float, better: float) -> float:
        return abs(gains) * abs(discounts) * math.log2(1 + math.exp(-better))

    expected = (
        term(0.737494 - 0.305480, 0.630930 - 1.0, 0.0 - 0.5)
        + term(0.737494 - 0.139539, 0.630930 - 0.5, 0.0 + 1.0)
        + term(0.305480 - 0.139539, 1.0 - 0.5, 0.5 + 1.0)
    )
    assert loss_of([0.0, 0.5, -1.0], [1.0, 0.5, 0.25]) == pytest.approx(expected, rel=1e-5)


def test_equal_records_ask_for_nothing_and_large_differences_do_not_overflow() -> None:
    assert loss_of([3.0, -2.0, 1.0], [1.0, 1.0, 1.0]) == 0.0
    assert loss_of([0.3], [1.0]) == 0.0
    assert math.isfinite(loss_of([-1e6, 1e6], [1.0, 0.1]))


def test_gradient_lifts_the_better_record_and_the_top_most() -> None:
    scores = torch.tensor([0.0, 0.0, 0.0, 0.0], requires_grad=True)
    lambda_rank(scores, torch.tensor([0.2, 1.0, 0.1, 0.5])).backward()
    assert scores.grad is not None
    assert int(scores.grad.argmin()) == 1  # descending the loss raises its score most
    assert scores.grad[1] < 0 < scores.grad[2]
    assert float(scores.grad.sum()) == pytest.approx(0.0, abs=1e-6)  # only differences of scores count


def test_labels_are_relative_to_the_best_of_the_task() -> None:
    logs = np.log([2.0, 4.0, 0.5, 0.25])
    groups = np.array([7, 7, 3, 3])
    assert fastest_of_group(logs, groups) == pytest.approx(np.log([2.0, 2.0, 0.25, 0.25]))
    assert relevance(logs, groups) == pytest.approx([1.0, 0.5, 0.5, 1.0])
