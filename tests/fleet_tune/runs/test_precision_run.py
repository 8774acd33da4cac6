"""A run with ``--precision``, from the command line to the folder, and what it is bound to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fleet_tune
from examples.networks import mlp
from tests.helpers.commands import Done, fleet_tune_here

NETWORK = f"{Path(__file__).parents[3]}/examples/networks.py:mlp"

pytestmark = pytest.mark.timeout(600)


def tune(out: Path, *options: str) -> Done:
    return fleet_tune_here("tune", NETWORK, "--out", str(out), "--no-store", "--trials", "4", "--json", *options)


def check_error(out: Path, told: dict[str, Any]) -> None:
    """What is told of the network in a folder, here and there, is what it does."""
    module, inputs = mlp()
    with torch.inference_mode():
        theirs = module(*inputs).numpy()
    ours = fleet_tune.load(out)(*inputs).numpy()
    assert ours.dtype == np.float32
    difference, scale = np.abs(ours.astype(np.float64) - theirs), np.abs(theirs).max()
    assert told["max_rel_error"] == pytest.approx(difference.max() / scale)
    assert told["mean_rel_error"] == pytest.approx(difference.mean() / scale)
    assert 0 < told["mean_rel_error"] < told["max_rel_error"] < 0.06
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["precision"], manifest["converted"]) == (told["precision"], told["converted"])
    assert manifest["measured"]["mean_rel_error"] == told["mean_rel_error"]
    assert json.loads((out / "result.json").read_text())["networks"][0]["precision"] == told["precision"]


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_a_network_in_one_precision_is_compiled_from_its_records(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = tune(out, "--precision", "bf16")
    [told] = done.json()["networks"]
    assert "bf16: mean error" in done.stderr
    assert told["precision"] == "bf16"
    check_error(out, told)

    other = tmp_path / "other"
    records = ("--records", str(out / "records.db"), "--out", str(other), "--json")
    [rebuilt] = fleet_tune_here("compile", NETWORK, *records, "--precision", "bf16").json()["networks"]
    assert (rebuilt["precision"], rebuilt["max_rel_error"]) == ("bf16", pytest.approx(told["max_rel_error"], rel=0.5))


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.long
def test_a_run_chooses_precisions_within_an_error_tells_it_and_owns_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    auto = ("--precision", "auto", "--max-error", "0.05")
    done = tune(out, *auto)
    [told] = done.json()["networks"]
    assert told["precision"] == "auto"
    assert told["converted"]
    assert re.search(r"auto \(\d in \w+", " ".join(done.stderr.split()))
    check_error(out, told)

    again = tune(out, *auto).json()
    assert again["new_trials"] == 0
    assert again["networks"][0]["converted"] == told["converted"], "it resumes with the same choice"

    refused = tune(out, "--precision", "auto", "--max-error", "0.01")
    assert refused.returncode == 2
    why = " ".join(refused.stderr.split())
    assert "with --precision auto --max-error 0.05, and this one is with --precision auto --max-error 0.01" in why


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--precision", "auto"), "the precision auto needs the largest error"),
        (("--max-error", "0.01"), "is for the precision auto"),
        (("--precision", "auto", "--max-error", "2"), "an error is a number above 0 and at most 0.1, not 2"),
    ],
)
def test_an_error_that_makes_no_sense_is_refused_at_once(
    options: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    done = tune(tmp_path / "out", *options)
    assert done.returncode == 2
    assert problem in " ".join(done.stderr.split())


def test_a_network_of_which_nothing_fits_stays_in_float32(tmp_path: Path) -> None:
    """The plan is of that network, and not of the last one that was tried."""
    done = tune(tmp_path / "out", "--dry-run", "--precision", "auto", "--max-error", "1e-7")
    plan = done.json()
    [errors] = plan["errors"].values()
    assert errors["relative"] < 1e-5
    assert [each["task"] for each in plan["left_out"]] == ["matmul 4x128", "matmul 4x128", "matmul 4x16"]
    assert all("none in another" in each["reason"] for each in plan["left_out"])


def test_the_plan_tells_the_error_of_the_untuned_network(tmp_path: Path) -> None:
    done = tune(tmp_path / "out", "--dry-run", "--precision", "fp16")
    plan = done.json()
    assert plan["precision"] == "fp16"
    [errors] = plan["errors"].values()
    assert 0 < errors["mean"] < errors["relative"] < 0.02
    assert "fp16; on " in done.stderr
