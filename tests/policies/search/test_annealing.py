"""Simulated annealing: the Metropolis rule by hand, the chains on spaces whose best states are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.search.annealing import AnnealingSettings, Chains, accept

INF, NAN = math.inf, math.nan
SMALL = AnnealingSettings(chains=8, steps=60, patience=60)


def draw(count: int, rng: np.random.Generator) -> np.ndarray:
    """Random points of a 64 x 64 grid."""
    return rng.integers(64, size=(count, 2))


def walk(states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.clip(states + rng.integers(-4, 5, size=states.shape), 0, 63)


def bowl(states: np.ndarray) -> np.ndarray:
    return np.square(states - np.array([40, 7])).sum(axis=1) / 100.0


def test_metropolis_by_hand() -> None:
    # exp(-0.5 / 2) = 0.7788: taken for draws below.
    old, new = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.5, 1.5, 0.2, 1.0])
    assert accept(old, new, 2.0, np.array([0.778, 0.779, 0.999, 0.999])).tolist() == [True, False, True, True]
    assert accept(old, new, 0.0, np.zeros(4)).tolist() == [False, False, True, True]


def test_impossible_states_are_left_and_never_entered() -> None:
    old, new = np.array([INF, NAN, 1.0, 1.0, INF]), np.array([INF, INF, INF, NAN, 1.0])
    assert accept(old, new, 1.0, np.zeros(5)).tolist() == [True, True, False, False, True]
    assert accept(old, new, 0.0, np.zeros(5)).tolist() == [True, True, False, False, True]


def test_the_chains_find_the_bottom() -> None:
    found = Chains().run(AnnealingSettings(patience=500), draw, walk, bowl, np.random.default_rng(0), 5)
    assert found[0].tolist() == [40, 7]
    assert sorted(bowl(found).tolist()) == bowl(found).tolist() == [0.0, 0.01, 0.01, 0.01, 0.01]


def test_kept_states_are_distinct_and_not_excluded() -> None:
    excluded = {np.array([40, 7], dtype=np.int64).tobytes()}
    found = Chains().run(AnnealingSettings(), draw, walk, bowl, np.random.default_rng(0), 200, excluded)
    assert len(found) == 200
    assert len({row.tobytes() for row in found}) == 200
    assert [40, 7] not in found.tolist()


def test_chains_persist_when_the_energies_change() -> None:
    chains, rng = Chains(), np.random.default_rng(1)
    chains.run(AnnealingSettings(chains=16, patience=500), draw, walk, bowl, rng, 4)
    asked: list[np.ndarray] = []

    def shifted(states: np.ndarray) -> np.ndarray:
        asked.append(states)
        return bowl(states + 2)

    chains.run(AnnealingSettings(chains=16, steps=1), draw, walk, shifted, rng, 4)
    # First the fresh states that give the unit of the temperature, then the states where the last run ended.
    assert bowl(asked[0]).mean() > 5.0
    assert bowl(asked[1]).mean() < 0.5


def test_a_run_ends_early_when_nothing_better_comes() -> None:
    calls = 0

    def flat(states: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return np.zeros(len(states))

    found = Chains().run(AnnealingSettings(chains=32, patience=5), draw, walk, flat, np.random.default_rng(0), 8)
    assert len(found) == 8
    assert calls <= 8


@pytest.mark.parametrize("value", [INF, NAN])
def test_impossible_everywhere_keeps_nothing(value: float) -> None:
    found = Chains().run(SMALL, draw, walk, lambda states: np.full(len(states), value), np.random.default_rng(0), 8)
    assert found.shape == (0, 2)


def test_a_single_state_and_nothing_to_keep() -> None:
    def only(count: int, _: np.random.Generator) -> np.ndarray:
        return np.zeros((count, 3), dtype=np.int64)

    found = Chains().run(SMALL, only, lambda s, _: s, lambda s: np.ones(len(s)), np.random.default_rng(0), 8)
    assert found.tolist() == [[0, 0, 0]]
    assert len(Chains().run(SMALL, draw, walk, bowl, np.random.default_rng(0), 0)) == 0
    with pytest.raises(ValueError, match="cannot keep"):
        Chains().run(SMALL, draw, walk, bowl, np.random.default_rng(0), -1)


@given(st.integers(0, 2**32 - 1))
def test_same_seed_same_states(seed: int) -> None:
    first, second = (Chains().run(SMALL, draw, walk, bowl, np.random.default_rng(seed), 16) for _ in range(2))
    assert first.tolist() == second.tolist()


def test_settings() -> None:
    settings = AnnealingSettings()
    assert (settings.chains, settings.steps, settings.hot, settings.cold) == (128, 500, 1.0, 0.0)
    assert [settings.shared_by(k).chains for k in (0, 1, 4, 100)] == [128, 128, 32, 16]
    for bad in ({"chains": 0}, {"steps": 0}, {"patience": 0}, {"hot": INF}, {"cold": -1.0}, {"cold": 2.0}):
        with pytest.raises(ValueError, match=r"annealing|temperature"):
            AnnealingSettings(**bad)
