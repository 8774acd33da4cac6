"""Rows of the float32 table: what is taken, what is not taken again, and what a failure does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.latency import float32_table
from bench.latency.float32_table import NETWORKS, commands, take
from bench.networks import public_networks
from bench.result import BenchError
from bench.saved_result import SCHEMA


def _saved(folder: Path, key: str, commit: str) -> None:
    bench = "per-op" if key.startswith("per-op") else "network-latency"
    facts = {"schema": SCHEMA, "bench": bench, "label": key.removeprefix(f"{bench}-"), "command": "", "commit": commit}
    more = {"dirty": False, "date": "2026-11-25", "duration_secs": 1.0, "machine": {}, "versions": {}}
    (folder / f"{key}.json").write_text(json.dumps({**facts, **more, "dependencies": {}, "result": {"details": {}}}))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the benchmarks that ran; those of SqueezeNet fail."""
    found: list[str] = []

    def run_json(arguments: list[str], **_options: Any) -> dict[str, Any]:
        label = arguments[arguments.index("--label") + 1]
        if "squeezenet" in label:
            raise BenchError("it is gone")
        found.append(f"{arguments[2]} {label}")
        return {"ours": 1.0, "ratio": 1.5}

    monkeypatch.setattr(float32_table, "run_json", run_json)
    monkeypatch.setattr(float32_table, "commit", lambda: "now")
    return found


def test_every_network_of_the_table_exists() -> None:
    assert all(callable(getattr(public_networks, name)) for name in NETWORKS)


def test_operators_are_those_of_what_was_tuned() -> None:
    (_, tuned), (_, operators) = commands("resnet18", 600.0)
    assert tuned[tuned.index("--out") + 1] == operators[operators.index("--folder") + 1] == "bench-out/f32-resnet18-600"


def test_rows_of_this_commit_are_not_taken_again(tmp_path: Path, taken: list[str]) -> None:
    _saved(tmp_path, "network-latency-f32-vit-tiny-60", "now")
    _saved(tmp_path, "per-op-f32-vit-tiny-60", "before")
    take(["vit_tiny", "resnet18"], 60.0, tmp_path)
    assert taken == ["per-op f32-vit-tiny-60", "network-latency f32-resnet18-60", "per-op f32-resnet18-60"]


def test_a_network_that_fails_is_named_in_the_end(tmp_path: Path, taken: list[str]) -> None:
    with pytest.raises(BenchError, match=r"not taken: network-latency-f32-squeezenet1-1-60$"):
        take(["squeezenet1_1", "resnet18"], 60.0, tmp_path)
    assert len(taken) == 2
