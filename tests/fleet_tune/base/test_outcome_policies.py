"""What the search may learn from, and what it may not, is said in one place and is what happens."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from actors.processes.searcher import group_observations
from fleet_tune.base.domain import OUTCOME_POLICIES, Outcome, Record
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate

ROOT = Path(__file__).parents[3]


def record(outcome: Outcome, number: int = 0) -> Record:
    measurement = ok(1e-3) if outcome is Outcome.OK else failed(outcome, f"{outcome} says why")
    return make_record(make_candidate("t@c", number), measurement, f"u{number}")


def test_every_outcome_teaches_something_or_says_why_not() -> None:
    assert set(OUTCOME_POLICIES) == set(Outcome)
    innocent = [outcome for outcome in Outcome if not outcome.blames_candidate]
    assert innocent == [Outcome.DEVICE_LOST, Outcome.KILLED]


@pytest.mark.parametrize("outcome", Outcome)
def test_the_search_learns_from_what_blames_the_candidate_and_from_nothing_else(outcome: Outcome) -> None:
    observed = group_observations([record(outcome)], {"t@c": {"s": 0}})
    if not outcome.blames_candidate:
        assert observed == {}
        return
    ((observation,),) = observed.values()
    assert observation.cost_secs == (1e-3 if outcome is Outcome.OK else math.inf)


def test_the_guide_says_the_same() -> None:
    guide = (ROOT / "docs" / "devices.md").read_text()
    for outcome, lesson in OUTCOME_POLICIES.items():
        assert f"| `{outcome}` | {'yes' if lesson.blames_candidate else 'no'} | {lesson.why} |" in guide
