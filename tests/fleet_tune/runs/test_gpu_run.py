"""A whole run with a GPU of software (tests/helpers/emulated_gpu), which loses a context in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_tune.base.domain import Outcome
from fleet_tune.base.records.stores.reader import RecordReader
from tests.helpers import emulated_gpu
from tests.helpers.emulated_gpu import ILLEGAL_ADDRESS, EmulatedGpu

ROOT = Path(__file__).parents[3]
TRIALS = 24

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.skipif(bool(emulated_gpu.missing()), reason=emulated_gpu.missing())
def test_a_network_is_tuned_checked_and_published(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    folder.mkdir()
    gpu = EmulatedGpu(folder)
    fleet = tmp_path / "fleet.toml"
    target = ", ".join(f"{name} = {json.dumps(value)}" for name, value in gpu.target.items())
    fleet.write_text(f'[[device]]\nname = "gpu"\ntarget = {{ {target} }}\n')
    gpu.fail_at(300, ILLEGAL_ADDRESS)
    options = ["--fleet", str(fleet), "--trials", str(TRIALS), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "fleet_tune", "tune", f"{ROOT}/examples/networks.py:mlp", *options],
        cwd=ROOT,
        env={**os.environ, **gpu.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(answer)[:3000], done.stderr[-3000:])
    with RecordReader(tmp_path / "out" / "records.db") as reader:
        records = list(reader)
    outcomes = [record.measurement.outcome for record in records]
    assert outcomes.count(Outcome.OK) > TRIALS / 2
    assert Outcome.WRONG_OUTPUT not in outcomes
    assert any(record.measurement.verified for record in records)
    assert gpu.contexts >= 2
