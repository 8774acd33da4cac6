from __future__ import annotations

from policies.runs.times.timers import Timers


def test_names_are_due_in_their_order_each_once() -> None:
    timers = Timers()
    assert timers.next_secs is None
    for secs, name in ((5.0, "late"), (1.0, "a"), (2.0, "b"), (1.5, "a"), (1.0, "a")):
        timers.at(secs, name)
    assert timers.next_secs == 1.0
    assert timers.due(0.5) == []
    assert timers.due(2.0) == ["a", "b"]
    assert timers.next_secs == 5.0
    timers.at(1.0, "a")  # in the past: due at once, once more
    assert timers.due(2.0) == ["a"]
    assert timers.due(10.0) == ["late"]
    assert timers.next_secs is None


def test_the_same_time_for_the_same_name_is_kept_once() -> None:
    timers = Timers()
    for _ in range(1000):
        timers.at(3.0, "a")
    assert len(timers._heap) == 1
