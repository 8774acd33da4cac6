"""Who is told that a cluster is lost does not wait for what stands still there."""

from __future__ import annotations

import threading

import pytest
import ray

from actors.clusters.cluster import connected


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("is_lost", [True, False])
def test_only_of_a_cluster_that_is_lost_nobody_waits_for_ray(monkeypatch: pytest.MonkeyPatch, is_lost: bool) -> None:
    answers, asked, left = threading.Event(), threading.Event(), threading.Event()

    def shutdown() -> None:
        asked.set()
        assert answers.wait(30)
        left.set()

    monkeypatch.setattr("actors.clusters.cluster._LEAVE_SECS", 0.01)
    monkeypatch.setattr("actors.clusters.cluster._connect", lambda *_: None)
    as_seen_first = iter([False])
    monkeypatch.setattr(ray, "is_initialized", lambda: next(as_seen_first, True))
    monkeypatch.setattr(ray, "shutdown", shutdown)
    if not is_lost:
        answers.set()
    with connected("10.0.0.1:6379") as cluster:
        cluster.is_lost = is_lost
    assert left.is_set() is not is_lost
    answers.set()
    assert left.wait(30)
    assert asked.is_set()
