"""Inputs with special values, and what outputs on them show."""

from __future__ import annotations

import numpy as np
import pytest

from devices.networks.checks.special_inputs import difference, special_inputs

NAN, INF = float("nan"), float("inf")


def test_every_value_is_somewhere_and_nothing_else_changes() -> None:
    data, index = np.ones((3, 300), np.float32), np.arange(4)
    sets = special_inputs([data, index, data], [False, False, True])
    assert list(sets) == ["NaN", "infinities"]
    changed = {name: given[0][given[0] != 1] for name, given in sets.items()}
    assert np.isnan(changed["NaN"]).sum() == 1
    assert set(changed["infinities"][~np.isfinite(changed["infinities"])]) == {INF, -INF}
    for name, (_, integers, fixed) in sets.items():
        assert (np.signbit(changed[name]) & (changed[name] == 0)).any()
        assert ((np.abs(changed[name]) > 0) & (np.abs(changed[name]) < 1e-39)).any()
        assert integers is index
        assert fixed is data
    assert (data == 1).all()
    again = special_inputs([data, index, data], [False, False, True])
    np.testing.assert_array_equal(again["NaN"][0], sets["NaN"][0])


def test_networks_without_floats_have_none() -> None:
    assert special_inputs([np.arange(4)], [False]) == {}


@pytest.mark.parametrize(
    ("kind", "ours", "theirs", "said"),
    [
        ("NaN", [NAN, 1.0], [NAN, 1.0], ""),
        ("NaN", [0.0, 1.0], [NAN, 1.0], "1 of 2 values are finite where the framework's are NaN"),
        ("NaN", [INF, 1.0], [NAN, 1.0], "1 of 2 values are infinite where the framework's are NaN"),
        ("NaN", [NAN, NAN], [NAN, 1.0], "1 of 2 values are NaN where the framework's are finite"),
        ("infinities", [INF, 1.0], [NAN, 1.0], ""),
        ("infinities", [INF, 1.0], [-INF, 1.0], "1 of 2 infinities have another sign"),
        ("infinities", [3.4e38, 1.0], [INF, 1.0], "1 of 2 values are finite where the framework's are infinite"),
        ("NaN", [NAN, 1.1], [NAN, 1.0], "relative error 0.1"),
        ("NaN", [0.0, NAN], [1e-40, NAN], ""),
    ],
)
def test_differences_are_told_by_place_and_kind(kind: str, ours: list[float], theirs: list[float], said: str) -> None:
    arrays = ([np.array(each, np.float32)] for each in (ours, theirs))
    told = difference(kind, *arrays, 1e-4)
    assert told == (f"on inputs with {kind}, output 0: {said}" if said else "")


def test_integers_may_differ_by_the_tolerance() -> None:
    right = np.arange(1000)
    wrong = right.copy()
    wrong[3] = 0
    assert difference("NaN", [wrong], [right], 1e-2) == ""
    assert "1 of 1000 values differ" in difference("NaN", [wrong], [right], 1e-4)
