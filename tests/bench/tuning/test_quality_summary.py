"""The networks of several results together, each from the newest one that has it."""

from __future__ import annotations

from bench.saved_result import SCHEMA, SavedResult
from bench.tuning.quality_summary import quality_summary
from bench.tuning.tuner_runs import FORMS, PEERS


def _saved(label: str, date: str, secs: dict[str, float | None], peer_secs: float = 1800.0) -> SavedResult:
    """``secs``: that our networks need, by the peer's model."""
    models = {}
    for name, of in secs.items():
        against = {"peer_secs": peer_secs, "times": dict.fromkeys(FORMS, of), "ahead": dict.fromkeys(FORMS, 2.0)}
        models[f"nets.py:{name}"] = {"against": dict.fromkeys(PEERS, against)}
    result = {"details": {"method": "fleet", "peer_batch": 16, "peer_secs": peer_secs, "models": models}}
    return SavedResult(SCHEMA, "time-to-quality", label, "", "0" * 40, False, date, 1.0, {}, {}, {}, result)


def test_the_newest_result_of_each_network_counts() -> None:
    old = _saved("both", "2026-11-25T00:00:00+00:00", {"a": 180.0, "b": 45.0})
    new = _saved("a", "2026-11-30T00:00:00+00:00", {"a": 90.0})
    lines = quality_summary([new, old]).splitlines()[2:]
    page = "generated/benchmarks.md#time-to-quality"
    assert lines == [
        f"| [`a`]({page}-a) | 16 |" + " 20.00 | 2.00 |" * 4,
        f"| [`b`]({page}-both) | 16 |" + " 40.00 | 2.00 |" * 4,
        "| least |  |" + " 20.00 | 2.00 |" * 4,
        "| geometric mean of 2 |  |" + " 28.28 | 2.00 |" * 4,
        "| asked, of 6 |  | 20 | 1.5 | 10 | 1.5 | 2.5 | 1.5 | 2.5 | 1.5 |",
    ]


def test_a_network_that_is_not_reached_leaves_no_mean() -> None:
    lines = quality_summary([_saved("", "2026-11-25", {"a": None})]).splitlines()
    assert lines[-2] == "| geometric mean of 1 |  |" + " - | 2.00 |" * 4


def test_results_of_another_time_have_a_table_of_their_own() -> None:
    short = _saved("short", "2026-11-25", {"a": 60.0}, 120.0)
    text = quality_summary([short, _saved("", "2026-11-25", {"a": 90.0})])
    assert [table.splitlines()[0].partition(";")[0] for table in text.split("\n\n")] == [
        "| `fleet` against 120 s of MetaSchedule",
        "| `fleet` against 1800 s of MetaSchedule",
    ]
    assert quality_summary([]) == ""
