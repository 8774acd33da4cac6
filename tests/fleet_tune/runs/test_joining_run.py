"""A whole run that a board of another class joins while it goes on."""

from __future__ import annotations

import contextlib
import json
import platform
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fleet_tune
from examples.networks import mlp
from fleet_tune.api import run_tuning
from fleet_tune.base.config.request import run_request
from fleet_tune.base.records.stores.classes import classes_in
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Progress
from fleet_tune.report.run import to_json

ROOT = Path(__file__).parents[3]
# Of any machine's kind, and of none's own.
OTHER_CPU = {"x86_64": "x86-64-v2", "aarch64": "generic"}

pytestmark = [pytest.mark.timeout(600), pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


@contextlib.contextmanager
def served(port: int) -> Iterator[None]:
    """A device server."""
    command = [sys.executable, "-m", "fleet_tune", "device", "serve", "--no-key", "--port", str(port), "--threads", "1"]
    serving = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0


def test_a_board_of_another_class_joins_is_tuned_and_known_to_the_next_run(tmp_path: Path, free_port: int) -> None:
    fleet, out = tmp_path / "fleet.toml", tmp_path / "out"
    fleet.write_text(
        '[[device]]\nname = "cpu"\ndevice_class = "cpu"\n'
        f'[[device]]\nname = "board"\nconnect = "127.0.0.1:{free_port}"\nthreads = 1\ndevice_class = "board"\n'
        f'target = {{ kind = "llvm", mcpu = "{OTHER_CPU[platform.machine()]}" }}\n'
    )
    snapshots: list[Progress] = []
    with contextlib.ExitStack() as boards:

        def seen(progress: Progress) -> None:
            if progress.new_trials and not any(each.new_trials for each in snapshots):
                boards.enter_context(served(free_port))  # it is switched on
            snapshots.append(progress)

        def tuned(task_trials: int) -> fleet_tune.TuneResult:
            network = f"{ROOT}/examples/networks.py:mlp"
            return run_tuning(run_request(network, out=out, fleet=fleet, task_trials=task_trials, store=""), seen)

        result = tuned(24)
        assert {task.device_class for task in snapshots[0].tasks} <= {"cpu"}
        trials = {(task.device_class, task.name): task.trials for task in result.tasks}
        assert set(trials.values()) == {24}
        assert {name for _, name in trials} == {name for device_class, name in trials if device_class == "board"}
        told = [notice.text for notice in result.notices]
        assert "device board answers: it is of class board, for which the network is prepared now" in told
        assert {each.device_class: (each.folder, each.published) for each in result.networks}.keys() == {"cpu", "board"}
        board = next(each for each in result.networks if each.device_class == "board")
        assert (board.folder, board.checked_on, board.unchecked) == (out / "board", "board", "")
        assert board.max_rel_error is not None
        assert board.max_rel_error < 1e-4
        module, inputs = mlp()
        here = fleet_tune.load(out / "cpu")(*inputs).numpy()
        np.testing.assert_allclose(here, module(*inputs).detach().numpy(), rtol=1e-4, atol=1e-5)
        assert {task["device_class"] for task in to_json(result)["tasks"]} == {"cpu", "board"}
        with RecordReader(out / "records.db") as reader:
            assert classes_in(reader.meta()) == ("board", "cpu")
            prints = json.loads(reader.meta()["fingerprints"])
            assert {each["device_class"]["name"] for each in prints} == {"cpu", "board"}
            devices = Counter(record.device_id for record in reader if record.revision == 0)
            assert set(devices) - {""} == {"cpu", "board"}

        # The next run finds all of it, with the board there from the start.
        again = tuned(26)
        assert again.new_trials == 2 * len(trials)
        assert {task.trials for task in again.tasks} == {26}
