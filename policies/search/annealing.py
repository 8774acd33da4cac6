"""Simulated annealing with persistent parallel chains (AutoTVM section 3.3; Kirkpatrick et al.).

A batch of Markov chains walks at once, so that the cost model predicts a whole step in one call. The chains keep their
states when the model is updated: the next run starts where the last one ended, with the new model's energies.

Notation: ``m`` chains; a state is a row of integers (a decision vector, or a row number of a pool), states have the
shape ``(m, d)``; an energy is what is minimised (predicted log seconds, or minus an acquisition's value).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats

States = NDArray[np.int64]
Energy = Callable[[States], Floats]
InputDraw = Callable[[int, np.random.Generator], States]
Walk = Callable[[States, np.random.Generator], States]

LEAST_CHAINS = 16


@dataclass(frozen=True)
class AnnealingSettings:
    """AutoTVM's appendix A.3: 128 chains (``n_sa``), at most 500 steps (``step_sa``)."""

    chains: int = 128
    """Chains that run side by side."""
    steps: int = 500
    """Largest number of steps."""
    hot: float = 1.0
    """First temperature, in standard deviations of the energies of random states, so that the same schedule serves log
    seconds and improvements; the paper leaves the unit open."""
    cold: float = 0.0
    """Last temperature, reached linearly."""
    patience: int = 50
    """Steps in a row without a new state among those to keep, after which a run ends early."""

    def __post_init__(self) -> None:
        if self.chains < 1 or self.steps < 1 or self.patience < 1:
            raise ValueError(f"annealing needs at least one chain, one step and some patience, got {self}")
        if not 0.0 <= self.cold <= self.hot < math.inf:
            raise ValueError(f"the temperature must fall from a finite value, not below 0, got {self}")

    def shared_by(self, spaces: int) -> AnnealingSettings:
        """Settings for one of several spaces walked together: they share the chains."""
        return replace(self, chains=max(self.chains // max(spaces, 1), min(self.chains, LEAST_CHAINS)))


def accept(old: Floats, new: Floats, temperature: float, draws: Floats) -> NDArray[np.bool_]:
    """Metropolis rule, shape ``(m,)``: a step is taken where ``draws < exp(-(new - old) / temperature)``.

    A step to a lower or equal energy is always taken; at temperature 0, no other step is. NaN counts as plus infinity.
    A step from infinity to infinity is taken, so that a chain can leave a region of impossible states.
    """
    old = np.where(np.isnan(old), np.inf, old)
    new = np.where(np.isnan(new), np.inf, new)
    downhill = new <= old
    if temperature <= 0.0:
        return downhill
    rise = np.subtract(new, old, out=np.zeros(len(old)), where=~downhill)
    return np.asarray(downhill | (draws < np.exp(-rise / temperature)))


class _Lowest:
    """The best distinct states seen, at most ``size`` of them."""

    def __init__(self, size: int, excluded: Set[bytes]) -> None:
        self._size = size
        self._seen = set(excluded)
        self._order = itertools.count()
        self._heap: list[tuple[float, int, NDArray[np.int64]]] = []  # the worst kept state first

    def offer(self, states: States, energies: Floats) -> bool:
        """Take in states that are better than the worst kept one; return true if there were any."""
        if self._size == 0:
            return False
        bound = -self._heap[0][0] if len(self._heap) >= self._size else math.inf
        changed = False
        for at in np.flatnonzero(energies < bound).tolist():
            energy = float(energies[at])
            if len(self._heap) >= self._size and energy >= -self._heap[0][0]:
                continue
            key = states[at].tobytes()
            if key in self._seen:
                continue
            self._seen.add(key)
            # The later of two states of equal energy is replaced first, so that the heap's order does not matter.
            entry = (-energy, -next(self._order), states[at].copy())
            if len(self._heap) < self._size:
                heapq.heappush(self._heap, entry)
            else:
                heapq.heapreplace(self._heap, entry)
            changed = True
        return changed

    def states(self, width: int) -> States:
        best = sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))
        return np.array([state for _, _, state in best], dtype=np.int64).reshape(len(best), width)


class Chains:
    """Chains of one space; their states persist from run to run."""

    def __init__(self) -> None:
        self._states: States | None = None

    def run(
        self,
        settings: AnnealingSettings,
        draw: InputDraw,
        walk: Walk,
        energy: Energy,
        rng: np.random.Generator,
        keep: int,
        excluded: Set[bytes] = frozenset(),
    ) -> States:
        """Return the ``keep`` states of lowest energy that the chains visited, the best first, shape ``(k, d)``.

        ``draw(count, rng)``: random states; ``walk(states, rng)``: a random neighbour of each. ``excluded``: keys (row
        bytes) of states that are walked through but not kept. States of infinite or NaN energy are never kept. So the
        result has fewer than ``keep`` states if the space is small, and none if every state is impossible.
        """
        if keep < 0:
            raise ValueError(f"cannot keep {keep} states")
        lowest = _Lowest(keep, excluded)
        fresh = draw(settings.chains, rng)
        energies = energy(fresh)
        lowest.offer(fresh, energies)
        finite = energies[np.isfinite(energies)]
        unit = float(finite.std()) if len(finite) else 0.0
        unit = unit if unit > 0 else 1.0
        states = fresh
        if self._states is not None and len(self._states) == len(fresh):
            states = self._states
            energies = energy(states)
            lowest.offer(states, energies)
        last_change = 0
        for step in range(settings.steps if keep else 0):
            temperature = settings.hot + (settings.cold - settings.hot) * step / max(settings.steps - 1, 1)
            moved = walk(states, rng)
            moved_energies = energy(moved)
            taken = accept(energies, moved_energies, temperature * unit, rng.random(len(states)))
            states = np.where(taken[:, None], moved, states)
            energies = np.where(taken, moved_energies, energies)
            if lowest.offer(moved, moved_energies):
                last_change = step
            elif step - last_change >= settings.patience:
                break
        self._states = states
        return lowest.states(fresh.shape[1])
