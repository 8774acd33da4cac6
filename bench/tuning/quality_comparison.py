"""Compares the curves of both tuners on networks; see :mod:`bench.tuning.time_to_quality`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from bench.tuning.tuner_runs import FORMS, PEER, PEERS

ASKED_LEAST = 4.0
"""How many times less time each of our forms is to need for each network."""
ASKED_AHEAD, ASKED_LEAST_AHEAD = 1.5, 1.0
"""How many times as fast our networks are to be at equal time, in the mean, and each."""
ASKED = {
    "as it comes": {PEER: 20.0, "metaschedule on our engine": 2.5},
    "from nothing": {PEER: 10.0, "metaschedule on our engine": 2.5},
}
"""How many times less time each of our forms is to need than each of the peer's."""
_AS_FAST = 1.02
"""Latencies of the peer's own networks, relative to its last one, that are as good as it."""


def compared(found: Mapping[str, Sequence[Mapping[str, Any]]], peer: str, budget_secs: float) -> dict[str, Any]:
    """Compare the curves (see :func:`curves`) with the last network of one form of the peer.

    Returns ``peer_secs``, the seconds that it took, but no more than its budget: it ends with a batch, and not before
    all kernels have had one, which is no merit of ours; ``own_secs``, in which it was as fast itself; ``times``, the
    seconds that each of our forms needs (None: it does not reach it); ``ahead``, how many times as fast each is with as
    much time at most (None: it has no network by then)."""
    last = found[peer][-1]

    def is_as_fast(point: Mapping[str, Any]) -> bool:
        return bool(point["latency"] <= point["last"][peer])

    peer_secs = min(last["secs"], budget_secs)
    own_secs = _from_then_on(found[peer], lambda point: point["latency"] <= _AS_FAST * point["last"][peer])
    in_time = {form: [each for each in found[form] if each["secs"] <= peer_secs] for form in FORMS}
    return {
        "peer_secs": peer_secs,
        "own_secs": min(own_secs or peer_secs, peer_secs),
        "latency": last["latency"],
        "unscheduled": last["unscheduled"],
        "error": last["error"],
        "times": {form: _from_then_on(found[form], is_as_fast) for form in FORMS},
        "ahead": {form: of[-1]["last"][peer] / of[-1]["latency"] if of else None for form, of in in_time.items()},
    }


def _from_then_on(points: Sequence[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], bool]) -> float | None:
    """Return the seconds of the first point from which on all hold; None if the last one does not."""
    first = None
    for point in reversed(points):
        if not holds(point):
            break
        first = float(point["secs"])
    return first


def means_of(details: Mapping[str, Mapping[str, Any]], secs: str) -> dict[str, dict[str, float]]:
    """How many times less than the peer's ``secs`` we need, the geometric mean over the models, by form and peer: 0
    where one does not reach it."""

    def mean(form: str, peer: str) -> float:
        times = [times_less(found["against"][peer], form, secs) for found in details.values()]
        return statistics.geometric_mean(times) if all(times) else 0.0

    return {form: {peer: mean(form, peer) for peer in PEERS} for form in FORMS}


def least(details: Mapping[str, Mapping[str, Any]], form: str, peer: str) -> dict[str, Any]:
    """Return the worst networks of one of our forms against one of the peer's: ``times`` and ``ahead``, each
    ``[model, how many times]``, 0 where it is not reached; ``ahead_mean``, the geometric mean, None where we have no
    network in time; ``models``, their number."""
    against = {model: found["against"][peer] for model, found in details.items()}
    times = {model: times_less(each, form, "peer_secs") for model, each in against.items()}
    ahead = {model: each["ahead"][form] or 0.0 for model, each in against.items()}

    def worst(of: Mapping[str, float]) -> list[Any]:
        return [*min(of.items(), key=itemgetter(1))]

    mean = statistics.geometric_mean(ahead.values()) if all(ahead.values()) else None
    return {"models": len(against), "times": worst(times), "ahead": worst(ahead), "ahead_mean": mean}


def times_less(against: Mapping[str, Any], form: str, secs: str) -> float:
    """Return how many times less than the peer's ``secs`` one of our forms needs by :func:`compared`; 0: it does not
    reach its network."""
    ours = against["times"][form]
    return 0.0 if ours is None else float(against[secs] / ours)
