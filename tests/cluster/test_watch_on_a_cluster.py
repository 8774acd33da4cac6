"""``fleet-tune watch --address``: a run whose folder is on the head node."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fleet_tune.base.records.stores.store import RecordStore
from tests.helpers.ray_nodes import DEADLINE_SECS, ROOT, Node, environment, free_address
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task

pytestmark = pytest.mark.timeout(600)


def test_a_run_of_the_head_node_is_shown() -> None:
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp", ignore_cleanup_errors=True) as made:
        folder, address, task = Path(made), free_address(), make_task("a")
        out = folder / "out"
        out.mkdir()
        with RecordStore(out / "records.db") as store:
            store.put_task(task)
            store.append([make_record(make_candidate(task, 1), ok(3e-3))])

        def watched(path: Path | str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "fleet_tune", "watch", str(path), "--address", address],
                env=environment(folder),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECS,
                check=False,
            )

        relative = watched("out")
        assert relative.returncode == 2
        assert "give the absolute path of the output folder on the head node" in relative.stderr
        unreachable = watched(out)
        assert unreachable.returncode == 2
        assert address in unreachable.stderr

        head = Node.head(folder, address)
        try:
            head.joined()
            shown = watched(out)
            assert shown.returncode == 0, shown.stderr
            assert "1 trial" in shown.stdout
            assert "3.150 ms" in shown.stdout
            missing = watched(folder / "none")
            assert missing.returncode == 2
            assert f"{folder / 'none'} has no records.db" in missing.stderr
            assert "Traceback" not in missing.stderr
        finally:
            head.kill()
