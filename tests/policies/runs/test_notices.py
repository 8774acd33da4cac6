from __future__ import annotations

from policies.runs.notices import MOST, Notices


def test_what_is_told_again_soon_is_counted() -> None:
    notices = Notices()
    for at in (1.0, 2.0, 50.0):
        notices.add("lost", at)
    notices.add("slow", 51.0)
    notices.add("lost", 200.0)  # much later: that is news
    assert [(each.number, each.at_secs, each.text, each.times) for each in notices.last] == [
        (1, 50.0, "lost", 3),
        (2, 51.0, "slow", 1),
        (3, 200.0, "lost", 1),
    ]


def test_only_the_last_are_kept() -> None:
    notices = Notices()
    for at in range(MOST + 5):
        notices.add(f"number {at}", float(at))
    assert [each.number for each in notices.last] == list(range(6, MOST + 6))
