"""The steps of a process, of several threads at once."""

from __future__ import annotations

import threading

from fleet_tune.base.activity import Activity


def test_the_newest_step_is_shown_and_the_one_around_it_afterwards() -> None:
    activity = Activity()
    assert activity.text == ""
    with activity.step("reading"):
        with activity.step("lowering") as say:
            say("lowering: fusion")
            assert activity.text == "lowering: fusion"
        assert activity.text == "reading"
        entered, leave = threading.Event(), threading.Event()

        def other() -> None:
            with activity.step("starting the devices"):
                entered.set()
                assert leave.wait(60)

        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(60)
        assert activity.text == "starting the devices"
        leave.set()
        thread.join(60)
        assert activity.text == "reading"
    assert activity.text == ""
