"""A published network in processes that multiprocessing spawns."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from devices.networks.compiled.network_folder import compile_network, load, publish
from fleet_tune.base.errors import OutputFolderError
from tests.helpers.lowered_networks import imported

ROOT = Path(__file__).resolve().parents[4]
_PROGRAM = """
import concurrent.futures, multiprocessing, os, sys
import numpy as np
from devices.networks.compiled.network_folder import load

image = np.arange(64, dtype="float32").reshape(8, 8)
kept = []

def keep(*networks):
    kept.extend(networks)

def total(_=0):
    return sum(float(network(image).sum()) for network in kept)

def total_of(network):
    return float(network(image).sum())

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    keep(load("cpu"), load("cpu"))
    os.chdir("/")
    want, spawn = total(), multiprocessing.get_context("spawn")
    with spawn.Pool(1, keep, kept) as pool:
        assert pool.map(total, range(3)) == [want] * 3
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        assert list(pool.map(total_of, kept)) == [want / 2] * 2
    assert total() == want
    print("right")
"""


def test_a_network_that_was_called_is_handed_to_spawned_processes(tmp_path: Path) -> None:
    """The folder was named relatively to another current folder than theirs."""
    lowered, _ = imported(nn.Linear(8, 8), torch.zeros(8, 8))
    compile_network(lowered, {}, tmp_path / "cpu")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_a_process_that_does_not_find_the_folder_says_so(tmp_path: Path) -> None:
    lowered, network = imported(nn.Linear(8, 8), torch.zeros(8, 8))
    folder = compile_network(lowered, {}, tmp_path / "cpu")
    loaded = load(folder)
    sent = pickle.dumps(loaded)
    again = pickle.loads(sent)
    assert (again(*network.example_inputs) == loaded(*network.example_inputs)).all()
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(OutputFolderError, match="cpu"):
        pickle.loads(sent)


def test_a_pickle_is_refused_once_its_folder_holds_another_network(tmp_path: Path) -> None:
    for name, width in (("first", 8), ("second", 4)):
        lowered, _ = imported(nn.Linear(8, width), torch.zeros(8, 8))
        compile_network(lowered, {}, tmp_path / name)
    pickled = pickle.dumps(load(tmp_path / "first"))
    publish(tmp_path / "second", tmp_path / "first")
    with pytest.raises(OutputFolderError, match="another network than the pickled one"):
        pickle.loads(pickled)
