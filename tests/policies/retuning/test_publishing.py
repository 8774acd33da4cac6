"""Whether a new version takes the place of the last one, and which old ones stay."""

from __future__ import annotations

import numpy as np

from policies.measuring.duel import MAX_PAIRS, Verdict, judged
from policies.retuning.publishing import DeviceComparison, decide, should_continue, superseded


def _met(device: str, ratio: float, faster: bool) -> DeviceComparison:
    return DeviceComparison(device, Verdict(ratio, 0.004, 12, faster))


def test_what_is_not_faster_beyond_doubt_is_not_published() -> None:
    decision = decide([_met("a", 0.99, False)])
    assert not decision.publish
    assert "not faster beyond doubt on a" in decision.why


def test_what_is_faster_on_one_device_and_slower_on_another_is_not_published() -> None:
    met = [_met("a", 0.9, True), _met("b", 1.02, False), _met("c", 0.9, True)]
    decision = decide(met)
    assert not decision.publish
    assert decision.worst.device == "b"
    assert "slower on b: 1.020" in decision.why
    assert not should_continue(met[:2])


def test_what_is_published_is_told_by_its_worst_device() -> None:
    met = [_met("a", 0.9, True), _met("b", 0.97, False)]
    assert should_continue(met)
    decision = decide(met)
    assert decision.publish
    assert decision.worst.device == "b"
    assert "all of 2 devices, the worst of them b" in decision.why


def test_of_equal_versions_at_most_one_in_a_hundred_is_published() -> None:
    rng = np.random.default_rng(3)
    for noise in (0.005, 0.03, 0.15):
        published = 0
        for _ in range(600):
            pairs = noise * rng.standard_normal(MAX_PAIRS)
            verdicts = (judged(pairs[:count].tolist()) for count in range(1, MAX_PAIRS + 1))
            verdict = next(each for each in verdicts if each is not None)
            published += decide([DeviceComparison("a", verdict)]).publish
        assert published <= 6


def test_the_current_version_and_the_one_before_it_are_always_kept() -> None:
    assert superseded([1, 2, 3, 4, 5, 6], current=6, keep=3) == [1, 2, 3]
    assert superseded([1, 2, 3, 4, 5, 6], current=2, keep=3) == [3]  # after a rollback
    assert superseded([1], current=1, keep=2) == []
