"""``fleet-tune scale`` on a cluster that somebody else has started."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers.ray_nodes import DEADLINE_SECS, ROOT, Node, environment, free_address

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


def test_a_cluster_is_measured_and_left_as_it_was() -> None:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as made:
        folder, address = Path(made), free_address()
        head = Node.head(folder, address)
        try:
            head.joined()
            options = f"--devices 2 --seconds 3 --candidate 0.1 --build 0.1 --json --address {address}"
            done = subprocess.run(
                [sys.executable, "-m", "fleet_tune", "scale", *options.split()],
                env=environment(folder),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECS,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            [row] = json.loads(done.stdout.splitlines()[-1])["rows"]
            assert row["trials_a_second"] > 0
            assert row["roles"]["Ray"]["memory_bytes"] > 0  # the raylet of this machine
            assert head.part("raylet").is_running()
        finally:
            head.kill()
