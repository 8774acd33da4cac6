"""A run with ``--library``, from the command line to the folder. Where oneDNN is not installed, it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fleet_tune
from devices.builds.libraries import onednn
from devices.builds.libraries.onednn import SHARED_LIBRARY, LibraryMissingError
from devices.sketches.rules.library import uses_library
from examples.networks import mlp
from fleet_tune.base.records.stores.reader import RecordReader
from tests.helpers.commands import Done, fleet_tune_here

NETWORK = f"{Path(__file__).parents[3]}/examples/networks.py:mlp"

pytestmark = pytest.mark.timeout(600)


def tune(out: Path, *options: str) -> Done:
    return fleet_tune_here("tune", NETWORK, "--out", str(out), "--no-store", "--json", *options)


def test_a_library_that_is_not_installed_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LibraryMissingError("the package is not installed", "pip install 'fleet-tune[onednn]'")

    monkeypatch.setattr(onednn, "installed", missing)
    out = str(tmp_path / "out")
    store = tmp_path / "records.db"
    compiling = ("compile", NETWORK, "--records", str(store), "--out", out)
    for command in (("tune", NETWORK, "--out", out), ("tune", NETWORK, "--out", out, "--dry-run"), compiling):
        done = fleet_tune_here(*command, "--library", "onednn")
        assert done.returncode == 2
        assert "next: pip install 'fleet-tune[onednn]'" in done.stderr
    assert not (tmp_path / "out" / "records.db").exists()


@pytest.mark.usefixtures("ray_cluster")
def test_a_run_tries_its_kernels_and_names_them(tmp_path: Path) -> None:
    try:
        version = onednn.installed().version
    except LibraryMissingError as error:
        pytest.skip(f"{error.problem}: {error.next_step}")
    out = tmp_path / "out"
    done = tune(out, "--library", "onednn", "--trials", "24")
    [network] = done.json()["networks"]
    assert network["device_class"].endswith("-onednn")
    with RecordReader(out / "records.db") as reader:
        tried = [record for record in reader.since(0) if uses_library(record.trace)]
        best = [reader.best(task.id) for task in reader.tasks()]
    assert any(record.measurement.run_secs for record in tried), [each.measurement.detail for each in tried]
    manifest = json.loads((out / "manifest.json").read_text())
    chosen = any(record is not None and uses_library(record.trace) for record in best)
    assert bool(manifest["libraries"]) == (out / SHARED_LIBRARY).exists()
    if chosen and network["published"] == "tuned" and not network["chosen_in_network"]:
        assert network["libraries"] == [f"oneDNN (onednn-cpu-gomp {version}), Apache-2.0"]
    module, inputs = mlp()
    with torch.inference_mode():
        theirs = module(*inputs)
    torch.testing.assert_close(fleet_tune.load(out)(*inputs), theirs, rtol=1e-4, atol=1e-4)

    other = tmp_path / "other"
    refused = fleet_tune_here("compile", NETWORK, "--records", str(out / "records.db"), "--out", str(other))
    assert refused.returncode == 2, "without the option none of its records counts"
    assert "no verified record" in " ".join(refused.stderr.split())
