"""Folders of parents and children that were killed together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devices.networks.processes.exchange_folder import ExchangeFolder

OWNER = """
from devices.networks.processes.exchange_folder import ExchangeFolder
folder = ExchangeFolder("lowering")
folder.file("weights").touch()
print(folder.path, flush=True)
input()
"""


def test_the_next_folder_takes_the_place_of_one_whose_owner_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # which is found once, and kept
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().decode().strip())
        assert left.parent == tmp_path
        beside = ExchangeFolder("lowering")
        assert (left / "weights").exists(), "its owner lives"
        owner.kill()
    assert left.exists(), "there is no child that would remove it"
    after = ExchangeFolder("lowering")
    assert not left.exists()
    assert beside.path.is_dir()
    for each in (beside, after):
        each.close()
        each.close()
    assert list(tmp_path.iterdir()) == []
