"""Networks that call a library: what their folders hold, and how they are loaded. The library is one of plain loops."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from devices.builds import libraries
from devices.builds.libraries.onednn import LICENCES, ONEDNN, SHARED_LIBRARY
from devices.networks.compiled.network_folder import compile_network, libraries_in, load, made_of, publish, staging
from devices.networks.compiled.tensor_file import file_digest
from devices.networks.frontend import Network, load_network
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network
from devices.targets import library_of, resolve_target, with_library
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import OutputFolderError
from tests.helpers.plain_library import library_traces, use_plain_library

CPU = DeviceClass("cpu", with_library(resolve_target("native", 2), ONEDNN))
pytestmark = pytest.mark.skipif(library_of(CPU.target) == "", reason="the library is for x86-64")


class Blocks(nn.Module):
    """Convolutions of several forms, two of them concatenated, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 80, 3, 2, 1)
        self.left, self.right = nn.Conv2d(80, 32, 1), nn.Conv2d(80, 72, 3, padding=1)
        self.last, self.head = nn.Conv2d(104, 96, 1), nn.Linear(96, 130)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.cat([torch.relu(self.left(x)), nn.functional.silu(self.right(x))], 1)
        answer: torch.Tensor = self.head(torch.relu(self.last(x)).mean((2, 3)))
        return answer


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(3)
    return load_network((Blocks().eval(), (torch.randn(2, 8, 15, 13),)))


@pytest.fixture(scope="module")
def lowered(network: Network) -> LoweredNetwork:
    return import_network(network, CPU)


@pytest.fixture(scope="module")
def best(lowered: LoweredNetwork) -> dict[str, str | None]:
    """A trace with calls in parts for every task that the library has."""
    traces: dict[str, str | None] = {task.id: found[-1] for task in lowered.tasks if (found := library_traces(task))}
    assert len(traces) == 5
    return traces


@pytest.fixture
def folder(
    lowered: LoweredNetwork, best: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    use_plain_library(tmp_path / "package", monkeypatch)
    return compile_network(lowered, best, tmp_path / "out")


def test_the_folder_holds_the_library_and_its_licence(folder: Path, network: Network) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    described = {"name": "oneDNN", "package": "onednn-cpu-gomp 1.2", "licence": "Apache-2.0"}
    assert manifest["libraries"] == [described]
    assert {SHARED_LIBRARY, LICENCES} <= manifest["files"].keys()
    assert (folder / LICENCES).read_text() == "A licence of plain loops.\n"
    assert libraries_in(folder) == ("oneDNN (onednn-cpu-gomp 1.2), Apache-2.0",)
    output = load(folder)(*network.example_inputs)
    assert compare((output,), network.framework_outputs())[1] < 1e-5


def test_another_process_needs_no_package(
    folder: Path, lowered: LoweredNetwork, network: Network, tmp_path: Path
) -> None:
    """Nor is anything wrong if it has loaded another network at the same place, which it reads from a copy then."""
    earlier, moved, answer = tmp_path / "earlier", tmp_path / "moved", tmp_path / "answer.npy"
    compile_network(lowered, {}, earlier)
    shutil.move(folder, moved)
    shutil.rmtree(tmp_path / "package")
    np.save(tmp_path / "input.npy", network.example_inputs[0])
    program = (
        "import os, sys, numpy, fleet_tune; earlier, network, given, answer = sys.argv[1:]; "
        "fleet_tune.load(earlier); os.rename(earlier, earlier + '.old'); os.rename(network, earlier); "
        "numpy.save(answer, fleet_tune.load(earlier)(numpy.load(given)))"
    )
    command = [sys.executable, "-c", program, *map(str, (earlier, moved, tmp_path / "input.npy", answer))]
    subprocess.run(command, check=True, timeout=120)
    assert compare((np.load(answer),), network.framework_outputs())[1] < 1e-5


def test_a_library_that_cannot_be_loaded_here_is_told(folder: Path) -> None:
    """As where GNU's OpenMP is missing."""
    (folder / SHARED_LIBRARY).write_bytes(b"no library")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][SHARED_LIBRARY] = file_digest(folder / SHARED_LIBRARY)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OutputFolderError, match="out: oneDNN cannot be loaded") as told:
        load(folder)
    assert "libgomp1" in told.value.next_step


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"another")])
def test_a_library_that_is_missing_or_another_one_is_told(change: object, folder: Path) -> None:
    change(folder / SHARED_LIBRARY)  # type: ignore[operator]
    with pytest.raises(OutputFolderError, match=re.escape(str(folder / SHARED_LIBRARY))):
        load(folder)


def test_a_network_without_its_kernels_does_without_it(
    lowered: LoweredNetwork, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_library(tmp_path / "package", monkeypatch)
    folder = compile_network(lowered, {}, tmp_path / "out")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["libraries"], libraries_in(folder)) == ([], ())
    assert {each.name for each in folder.iterdir()} == {"network.so", "params.safetensors", "manifest.json"}
    output = load(folder)(*network.example_inputs)
    assert compare((output,), network.framework_outputs())[1] < 1e-5


def test_publishing_moves_the_library_and_takes_it_away_again(
    lowered: LoweredNetwork, best: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_library(tmp_path / "package", monkeypatch)
    out = tmp_path / "published"
    with staging(out) as stage:
        publish(compile_network(lowered, best, stage), out)
    assert set(libraries.FILES) <= {each.name for each in out.iterdir()}
    with staging(out) as stage:
        assert {each.name for each in stage.iterdir()} == {each.name for each in out.iterdir()} - {".staged"}
        publish(compile_network(lowered, {}, stage), out)
    assert not set(libraries.FILES) & {each.name for each in out.iterdir()}
    load(out)


def test_another_version_of_the_library_is_another_network(
    folder: Path, lowered: LoweredNetwork, best: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made_of(lowered, best)
    assert json.loads((folder / "manifest.json").read_text())["made_of"] == before
    plain = use_plain_library(tmp_path / "other", monkeypatch)
    assert made_of(lowered, best) == before
    monkeypatch.setattr(type(plain), "description", {"name": "oneDNN", "package": "2", "licence": "Apache-2.0"})
    assert made_of(lowered, best) != before
