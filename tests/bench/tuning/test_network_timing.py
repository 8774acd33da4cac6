"""Which networks are timed together, and the curves that come of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.tuning import network_timing
from bench.tuning.network_timing import Timing, curves, timings
from bench.tuning.tuner_runs import PEER, TunerRun, runs

MODEL = "net.py:net"
GRID = (15.0, 50.0)
OTHER = "metaschedule on our engine"


def _network(secs: float, unscheduled: int = 0) -> dict[str, Any]:
    figures = {"secs": secs, "trials": 9, "device_secs": 1.0}
    return {**figures, "unscheduled": unscheduled, "folder": f"after-{secs:g}"}


def _take(piece: TunerRun) -> dict[str, Any]:
    if piece.form == PEER:
        return {"tasks": 3, "networks": [_network(20.0, 1), _network(70.0), _network(130.0)]}
    if piece.form == OTHER:
        return {"tasks": 3, "networks": [_network(40.0, 3), _network(74.0, 2), _network(110.0, 2)]}
    store = {"shipped": 2} if piece.form == "as it comes" else None
    known = {"store": store, "task_results": [{}, {}, {}], "folder": f"{piece.form} {piece.budget_secs:g}"}
    return {"elapsed_secs": piece.budget_secs + 5, "trials": 3, "device_secs": 2.0, **known}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Timing]:
    monkeypatch.setattr(TunerRun, "take", _take)
    tuned = list(runs([MODEL], 100.0, GRID, tmp_path))
    for piece in tuned:
        piece.run()
    return timings(MODEL, tuned, tmp_path, 2, 1.0)


def _names(networks: tuple[dict[str, Any], ...]) -> list[tuple[str, float]]:
    return [(each["form"], each["secs"]) for each in networks]


def test_the_networks_of_a_moment_meet_those_that_the_peer_has_in_the_end(timed: list[Timing]) -> None:
    assert [(each.moment, _names(each.networks)) for each in timed] == [
        (15.0, [("as it comes", 20.0), ("from nothing", 20.0)]),  # one of the peer's kernels is not tuned by then
        # Two of the other's kernels are not tuned in the end either.
        (50.0, [(PEER, 70.0), (OTHER, 74.0), ("as it comes", 55.0), ("from nothing", 55.0)]),
    ]
    assert [_names(each.last) for each in timed] == [[(PEER, 130.0), (OTHER, 110.0)]] * 2


def test_a_timing_is_made_again_for_other_networks(timed: list[Timing], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timing, "take", lambda _piece: {})
    timed[0].run()
    assert timed[0].is_done
    (network, *rest) = timed[0].networks
    other = Timing(MODEL, timed[0].folder, 15.0, ({**network, "secs": 21.0}, *rest), timed[0].last, 2, 1.0)
    assert not other.is_done


def test_curves_have_each_network_beside_the_last_ones_of_the_peer(
    timed: list[Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def measure_sides(_model: str, names: list[str], **options: Any) -> dict[str, Any]:
        asked.append({**options, "names": names})
        slower = len(asked)  # the machine, at the second moment
        secs = {name: slower * float(name.rpartition(" ")[2]) for name in names}
        return {
            name: {"secs": {"median": secs[name], "count": 9}, "relative_error": math.nan if name == names[0] else 0.5}
            for name in names
        }

    monkeypatch.setattr(network_timing, "measure_sides", measure_sides)
    for piece in timed:
        piece.run()
    names = [f"0, {PEER} 70", f"1, {OTHER} 74", "2, as it comes 55", "3, from nothing 55", f"4, {PEER} 130"]
    assert asked[1]["names"] == [*names, f"5, {OTHER} 110"]
    assert asked[1]["kinds"][names[4]] == PEER
    assert asked[1]["kinds"][names[2]] == "ours"
    assert asked[1]["unchecked"] == [names[0], names[1], names[4], f"5, {OTHER} 110"]
    assert asked[1]["folders"][names[2]] == Path("as it comes 50")
    found = curves(timed)
    [first, second] = found["as it comes"]
    assert (first["latency"], first["last"]) == (20.0, {PEER: 130.0, OTHER: 110.0})
    assert (second["latency"], second["last"]) == (110.0, {PEER: 260.0, OTHER: 220.0})
    assert second["spread"] == {"median": 110.0, "count": 9}
    assert {name: first[name] for name in ("trials", "device_secs", "tasks", "shipped")} == {
        "trials": 3,
        "device_secs": 2.0,
        "tasks": 3,
        "shipped": 2,
    }
    assert [(each["secs"], each["latency"]) for each in found[PEER]] == [(70.0, 140.0), (130.0, 195.0)]
    assert [(each["secs"], each["unscheduled"]) for each in found[OTHER]] == [(74.0, 2), (110.0, 2)]
    assert [each["error"] for each in found["as it comes"]] == [1.0, 0.5], "outputs that are no numbers"
    json.dumps(found)
