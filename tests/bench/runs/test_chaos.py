"""A run under fire, for real: a few kills and stops, on a cluster of two nodes."""

from __future__ import annotations

import random
import signal
import tempfile
from pathlib import Path

import pytest

from bench.runs import chaos_process

TRIALS = 240
ROLES = {*chaos_process.ACTORS, chaos_process.COMMAND, "gcs_server of the head", "raylet of the head", "raylet", "node"}

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


async def test_a_run_under_fire_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # One of the run, one of those that end it, a node.
    due = iter(["Searcher", chaos_process.COMMAND, "node"])
    monkeypatch.setattr(chaos_process, "chosen", lambda victims, _rng: next(due) if victims else "")
    # What is stopped is missed after half a minute or a minute: test_lost_processes.py stops every process.
    monkeypatch.setattr(chaos_process, "_SIGNALS", (signal.SIGKILL,))
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        found = await chaos_process.play(3, TRIALS, 2, 1, None, Path(folder), 1)
    assert [each["role"] for each in found["kills"]] == ["Searcher", chaos_process.COMMAND, "node"]
    assert len(found["ends"]) >= 1, "the command was killed, and given again"
    assert (found["trials"], found["lost"], found["doubled"]) == (TRIALS, 0, 0)
    assert (
        found["acknowledged"] >= TRIALS - 64
    )  # with what the shoot-outs found, but for what nobody was told in the end


def test_every_kind_of_process_has_its_turn() -> None:
    victims: chaos_process.Victims = {role: [] for role in ROLES}
    rng = random.Random(0)
    assert {chaos_process.chosen(victims, rng) for _ in range(500)} == ROLES
