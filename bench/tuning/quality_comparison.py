"""Comparison of the curves of both tuners; see :mod:`bench.tuning.time_to_quality`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from bench.tuning.tuner_runs import FORMS, PEER, PEERS

ASKED_LEAST = 4.0
"""Required ratio of the peer's time to ours, for each of our forms and each network."""
ASKED_AHEAD, ASKED_LEAST_AHEAD = 1.5, 1.0
"""Required ratios of the peer's latency to ours at equal time: of the geometric mean over the networks, and of each
network."""
ASKED = {
    "as it comes": {PEER: 20.0, "metaschedule on our engine": 2.5},
    "from nothing": {PEER: 10.0, "metaschedule on our engine": 2.5},
}
"""Required ratio of the time of each of the peer's forms to that of each of ours: the geometric mean over the
networks."""
_AS_FAST = 1.02
"""Largest latency of a network of the peer that counts as its last latency, as a multiple of it."""


def compared(found: Mapping[str, Sequence[Mapping[str, Any]]], peer: str, budget_secs: float) -> dict[str, Any]:
    """Compare our curves with the last network of one form of the peer, and return the figures.

    - ``peer_secs``: seconds that the last network took, at most the budget. The peer ends with a whole batch, and not
      before each kernel has had a batch; the excess over the budget does not count in our favour.
    - ``own_secs``: seconds after which the peer itself was as fast as in the end, at most ``peer_secs``.
    - ``latency``, ``unscheduled``, ``error``: of the last network.
    - ``times``: seconds of the shortest run of each of our forms such that it and all longer runs are as fast. None if
      the longest run is not as fast.
    - ``ahead``: ratio of the peer's latency to that of each of our forms after at most ``peer_secs``. None if the form
      has no network by then.

    Args:
        found: points of each form (:func:`bench.tuning.network_timing.curves`).
        peer: form of the peer.
        budget_secs: budget of the peer.
    """
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
    """Return the seconds of the earliest point such that ``holds`` is true for it and all later points. None if it is
    false for the last point."""
    first = None
    for point in reversed(points):
        if not holds(point):
            break
        first = float(point["secs"])
    return first


def means_of(details: Mapping[str, Mapping[str, Any]], secs: str) -> dict[str, dict[str, float]]:
    """Return the ratio of the peer's time to ours by our form and the peer's form, as the geometric mean over the
    models. 0 if our form does not become as fast for one of them. ``secs``: the peer's time, ``peer_secs`` or
    ``own_secs`` of :func:`compared`."""

    def mean(form: str, peer: str) -> float:
        times = [times_less(found["against"][peer], form, secs) for found in details.values()]
        return statistics.geometric_mean(times) if all(times) else 0.0

    return {form: {peer: mean(form, peer) for peer in PEERS} for form in FORMS}


def least(details: Mapping[str, Mapping[str, Any]], form: str, peer: str) -> dict[str, Any]:
    """Return the worst results of one of our forms against one of the peer's.

    ``times`` and ``ahead``: the worst model and its ratio of times, and of latencies at equal time; the ratio is 0 if
    we do not become as fast, or have no network in time. ``ahead_mean``: geometric mean of the ratios of latencies;
    None if we have no network in time for a model. ``models``: number of models.
    """
    against = {model: found["against"][peer] for model, found in details.items()}
    times = {model: times_less(each, form, "peer_secs") for model, each in against.items()}
    ahead = {model: each["ahead"][form] or 0.0 for model, each in against.items()}

    def worst(of: Mapping[str, float]) -> list[Any]:
        return [*min(of.items(), key=itemgetter(1))]

    mean = statistics.geometric_mean(ahead.values()) if all(ahead.values()) else None
    return {"models": len(against), "times": worst(times), "ahead": worst(ahead), "ahead_mean": mean}


def times_less(against: Mapping[str, Any], form: str, secs: str) -> float:
    """Return the ratio of the peer's ``secs`` to the time of one of our forms. 0 if the form does not become as fast as
    the peer's last network. ``against``: the result of :func:`compared`."""
    ours = against["times"][form]
    return 0.0 if ours is None else float(against[secs] / ours)
