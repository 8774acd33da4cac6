"""``tune --transfer-from`` with the records of an earlier run: measured here, read again, and learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet_tune.base.records.stores.reader import RecordReader
from policies.cost_models.knowledge import LEAST_RECORDS
from tests.helpers.commands import fleet_tune_here

MODEL = """
import torch

def layer():
    torch.manual_seed(7)
    return torch.nn.Linear(48, 64).eval(), (torch.randn(8, 48),)
"""
TRIALS = LEAST_RECORDS + 2  # of the one task: the records that a model of its own takes

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def tune(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The JSON of a run that succeeds, and what it told a person."""
    model = folder / "model.py"
    model.write_text(MODEL)
    done = fleet_tune_here("tune", f"{model}:layer", "--json", *options)
    return done.json(), done.stderr


@pytest.mark.usefixtures("ray_cluster")
def test_a_run_starts_from_the_records_of_an_earlier_one(tmp_path: Path) -> None:
    first, told = tune(tmp_path, "--trials", str(TRIALS), "--out", str(tmp_path / "first"))
    assert first["transferred"] == {  # nothing was named: the model that comes along
        "source": "pretrained",
        "candidates": 0,
        "left_out": 0,
        "own_tasks": 0,
        "shared_tasks": 1,
    }
    assert "the cost model that comes with fleet-tune, for 1 task" in told

    records = tmp_path / "first" / "records.db"
    with RecordReader(records) as reader:
        trials = [record for record in reader if record.revision == 0]
    (task,) = first["tasks"]
    assert len(trials) == task["trials"] == TRIALS
    expected = {
        "source": str(records),
        "candidates": TRIALS,
        "left_out": 0,
        "own_tasks": 1,
        "shared_tasks": 0,
    }
    planned, told = tune(tmp_path, "--dry-run", "--transfer-from", str(records))
    assert planned["transferred"] == expected
    assert f"{records}:{TRIALS}candidates" in "".join(told.split()), told  # wherever the lines are broken

    second, _ = tune(tmp_path, "--trials", "9", "--out", str(tmp_path / "second"), "--transfer-from", str(records))
    assert second["transferred"] == expected
    assert second["new_trials"] == 9
    assert second["networks"][0]["max_rel_error"] < 1e-4
