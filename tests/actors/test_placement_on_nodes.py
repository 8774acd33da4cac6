"""Who is on which machine, on a real cluster of two nodes, each of which has quiet windows of its own."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.ray_nodes import DEADLINE_SECS, Node, Run, free_address
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

# One that shares the cores of the host that drives it, and one that answers from a dataset, on the head.
FLEET = """
[[device]]
name = "far"
connect = "local"
via = "edge"

[[device]]
name = "near"
connect = "recorded:{data}"

[build]
workers = 1
"""
DATA = Path(__file__).parents[2] / "bench/data/znver5-2.ftd"


def test_each_host_has_builders_and_its_own_windows_and_a_host_that_comes_back_is_used_again() -> None:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        address = free_address()
        nodes = [Node.head(folder, address, machine="head")]
        runs: list[Run] = []

        def edge_added() -> Node:
            edge = ("--address", address, "--resources", '{"fleet-tune-host:edge": 1}')
            nodes.append(Node(folder, *edge, machine="edge"))
            return nodes[-1].joined()

        try:
            nodes[0].joined()
            edge = edge_added()
            (folder / "run").mkdir()
            (folder / "run/fleet.toml").write_text(FLEET.format(data=DATA))
            run = Run(address, folder / "run", machine="head")
            runs.append(run)

            placed = run.until(lambda line: "head" in line, "who is where")
            assert placed["devices"]["near"] == placed["head"]
            assert placed["devices"]["far"] != placed["head"]
            assert Counter(placed["builders"]) == {placed["head"]: 1, placed["devices"]["far"]: 1}

            def seen() -> list[dict[str, list[bool]]]:
                notes = folder / "run/far.seen"
                lines = notes.read_text().splitlines()[:-1] if notes.exists() else []
                return [both for both in map(json.loads, lines) if both.keys() == {"head", "edge"}]

            wait_until(lambda: len(seen()) >= 5, "far measures while both hosts build", DEADLINE_SECS)
            for each in seen():
                assert each == {"head": [False], "edge": [True]}

            # The host is gone, and comes back as another node.
            edge.kill()
            run.told(
                "a machine has left the cluster, with its builders (1)",
                "device far leaves: its host edge has left the cluster",
                "device far is waited for",
            )
            before = run.more()["measured"].get("far", 0)
            edge_added()
            run.told("fleet-tune-host:edge) builds now (builders: 1)")
            run.until(lambda line: line.get("measured", {}).get("far", 0) > before, "far measures again")
        finally:
            for each_run in runs:
                each_run.end()
            for node in nodes:
                node.kill()
