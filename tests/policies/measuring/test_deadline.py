"""Deadlines by hand."""

from __future__ import annotations

from policies.measuring.deadline import batch_secs, oracle_secs, shoot_out_secs


def test_a_batch_has_time_for_two_measurements_and_a_duel_of_each_for_a_round_and_for_the_oracles() -> None:
    # 900 + (7 * 10 + 20) + (7 * 20 + 20) + (5 + 5 + 2 * 20 + 10) + 12
    assert batch_secs(900.0, [10.0, 20.0], [12.0]) == 1222.0


def test_a_shoot_out_has_time_for_a_duel_of_each_finalist_and_for_the_oracle() -> None:
    assert shoot_out_secs(900.0, 3, 10.0, 12.0) == 900.0 + 3 * (5 * 10.0 + 20.0) + 12.0


def test_an_oracle_has_its_patience_and_three_runs_and_then_twice_of_that() -> None:
    assert oracle_secs(150.0, 2.0) == 3 * (150.0 + 3 * 2.0)
