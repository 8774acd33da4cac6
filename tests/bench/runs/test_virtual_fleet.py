"""Fleets in virtual time on the state of a run: devices are kept busy, and what bounds them is known."""

from __future__ import annotations

import dataclasses

import pytest

from bench.runs import scaling
from bench.runs.virtual_fleet import Costs, VirtualFleet
from fleet_tune.base.results import DeviceTime
from policies.runs.stages.pace import searchers

# Nobody is lost or waits: what is left is the flow.
CALM = Costs(crashes=0.0, losses=0.0)


def fleet(count: int, secs: float = 1.0, *, builders: int | None = None, costs: Costs = CALM) -> VirtualFleet:
    """Equal devices with builders that keep up with them, if it is not said how many."""
    needed = max(2, round(1.25 * count / secs * costs.build_secs))
    devices = {f"d{at}": ("class", secs) for at in range(count)}
    return VirtualFleet(devices, builders or needed, searchers=searchers(count), costs=costs)


@pytest.mark.parametrize(("count", "span_secs"), [(1, 120.0), (8, 120.0), (64, 60.0), (1000, 12.0)])
def test_equal_devices_are_busy(count: int, span_secs: float) -> None:
    made = fleet(count)
    made.play(12.0)
    before = len(made.committed_at)
    made.play(12.0 + span_secs)
    assert made.utilisation(12.0) >= 0.95
    assert (len(made.committed_at) - before) / span_secs >= 0.85 * count
    progress = made.state.progress(made.now)
    assert progress.bounds == {"class": "measure"}


def test_a_slow_class_and_fast_ones_are_busy_side_by_side() -> None:
    devices = {f"{name}-{at}": (name, secs) for name, secs in (("slow", 20.0), ("fast", 0.1)) for at in range(4)}
    made = VirtualFleet(devices, builders=32, costs=CALM)
    made.play(260.0)
    assert made.utilisation(60.0, "slow") >= 0.95
    assert made.utilisation(60.0, "fast") >= 0.9
    # The first batch of a class is given while nothing is known of it.
    sizes = {name: made.measured[f"{name}-0"] / made.batches[f"{name}-0"] for name in ("slow", "fast")}
    assert sizes["slow"] <= 2.0
    assert sizes["fast"] >= 8.0
    # What is under way is what keeps them busy: not 40 candidates for devices that measure three a minute.
    under_way = {task.device_class: 0 for task in made.state.tasks.values()}
    for task in made.state.tasks.values():
        under_way[task.device_class] += task.in_flight
    assert under_way["slow"] <= 20
    assert under_way["fast"] >= 80


@pytest.mark.parametrize(
    ("changed", "builders", "bound"),
    [
        ({}, 40, "measure"),
        ({"build_secs": 20.0}, 2, "build"),
        ({"propose_secs": 30.0}, 40, "search"),
        ({"durable_secs": 60.0}, 40, "commit"),
    ],
)
def test_what_bounds_a_run_is_known(changed: dict[str, float], builders: int, bound: str) -> None:
    made = fleet(8, builders=builders, costs=dataclasses.replace(CALM, **changed))
    made.play(300.0)
    progress = made.state.progress(made.now)
    assert progress.bounds == {"class": bound}
    for shares in (progress.device_time["class"], progress.device_time_whole["class"]):
        assert sum(shares.values()) == pytest.approx(1.0)
    measured = progress.device_time_whole["class"].get(DeviceTime.MEASURE, 0.0)
    assert measured == pytest.approx(made.utilisation(0.0), abs=0.05)


def test_the_benchmark_has_a_row_for_each_size_of_fleet() -> None:
    result = scaling.run((1, 6), 1.0, 0.5, equal=False)
    rows = result.details["rows"]
    assert [row["devices"] for row in rows] == [1, 6]
    assert set(rows[1]["busy_by_class"]) == {"board", "server", "card"}
    assert rows[1]["trials_a_second"] > 3 * rows[0]["trials_a_second"]
    assert scaling.table({"details": result.details}).count("\n") == 3
