"""Parts of a real cluster of two nodes are killed and stopped while a run of recorded devices goes on: a node that is
gone costs what was on it, and without its head the run ends with one line."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_tune.base.records.stores.reader import RecordReader
from tests.helpers.ray_nodes import DEADLINE_SECS, Node, Run, free_address

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


def stored_once(store: Path) -> int:
    """Trials in the store, each of which is there once."""
    with RecordReader(store) as reader:
        tried = Counter(record.candidate.id for record in reader if record.revision == 0)
    assert max(tried.values()) == 1
    return tried.total()


def test_a_node_that_is_gone_costs_what_was_on_it_and_a_head_that_is_gone_ends_the_run(folder: Path) -> None:
    address = free_address()
    port = address.rpartition(":")[2]
    nodes = [Node.head(folder, address)]
    runs: list[Run] = []
    try:
        head = nodes[0].joined()
        (folder / "first").mkdir()
        (folder / "second").mkdir()

        def node_added() -> Node:
            nodes.append(Node(folder, "--address", address))
            return nodes[-1].joined()

        # A raylet that is killed, then a whole node.
        other = node_added()
        run = Run(address, folder / "first")
        runs.append(run)
        assert len(set(run.until(lambda line: "builders" in line, "its nodes")["builders"])) == 2
        run.more()
        other.part("raylet").kill()
        run.told("a machine has left the cluster, with its builders (4)")
        run.more()

        # The cluster's server, which stands still: Ray would go on for a minute, and then end without a word of it.
        server = head.part("gcs_server")
        server.suspend()
        try:
            lost = run.until(lambda line: "lost" in line, "the cluster is lost")["lost"]
            assert re.fullmatch(f"nobody answers at .*:{port} any more", lost)
        finally:
            server.resume()
        assert run.process.wait(DEADLINE_SECS) == 0
        assert stored_once(run.store) >= 40

        # A head that is killed.
        run = Run(address, folder / "second")
        runs.append(run)
        run.more()
        head.kill()
        lost = run.until(lambda line: "lost" in line, "the cluster is lost")["lost"]
        assert re.fullmatch(
            f"nobody listens at .*:{port} any more|Ray's raylet .* was killed, or ended by itself", lost
        )
        assert run.process.wait(DEADLINE_SECS) == 0
        assert stored_once(run.store) >= 20
    finally:
        for each in runs:
            each.end()
        for node in nodes:
            node.kill()
