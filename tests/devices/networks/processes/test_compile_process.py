"""Networks compiled in a child process, which may be lost over one and serves the next."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices.host.warm_process import ChildStartError
from devices.networks.compiled import network_folder
from devices.networks.frontend import Network, load_network
from devices.networks.processes.compile_process import CompilationError, CompileProcess
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network
from devices.targets import NATIVE, resolve_target
from examples.networks import mlp
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import DiskFullError, MemoryLackedError, OutputFolderError, RecordStoreError
from fleet_tune.base.precision import Conversion, Precision
from tests.helpers.compile_child import CHILD, CRASHES, KILLED, STARVED, WAITS


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(mlp())


@pytest.fixture(scope="module")
def lowered(network: Network) -> LoweredNetwork:
    return import_network(network, DeviceClass("cpu", resolve_target(NATIVE, 2)))


@pytest.fixture(scope="module")
def process() -> Iterator[CompileProcess]:
    with contextlib.closing(CompileProcess(20, CHILD)) as opened:
        yield opened


def made_of(folder: Path) -> str:
    found: str = json.loads((folder / "manifest.json").read_text())["made_of"]
    return found


def schedules(lowered: LoweredNetwork, trace: str) -> Mapping[str, str | None]:
    return {lowered.tasks[0].id: trace}


def test_a_network_is_compiled_as_in_this_process(
    process: CompileProcess, network: Network, lowered: LoweredNetwork, tmp_path: Path
) -> None:
    folder = process.compile_network(lowered, {}, tmp_path / "there", {"note": "kept", "threads": 2})
    outputs = network_folder.load(folder)(*network.example_inputs)
    error, _ = compare((np.asarray(outputs),), network.framework_outputs())
    assert error < 1e-5

    here = network_folder.compile_network(lowered, {}, tmp_path / "here", {"note": "kept", "threads": 2})
    assert made_of(folder) == made_of(here) == network_folder.made_of(lowered, {})
    chosen = Conversion(Precision.AUTO, 0.01, ((0, Precision.BF16),))
    other = dataclasses.replace(lowered, conversion=chosen, left_out=(("a step", "a reason"),))
    assert made_of(process.compile_network(other, {}, tmp_path / "other")) == network_folder.made_of(other, {})
    theirs, ours = (json.loads((each / "manifest.json").read_text()) for each in (folder, here))
    assert theirs["files"]["params.safetensors"] == ours["files"]["params.safetensors"]
    assert {**theirs, "files": None} == {**ours, "files": None}


def test_what_the_user_can_mend_is_raised_as_it_was(
    process: CompileProcess, lowered: LoweredNetwork, tmp_path: Path
) -> None:
    with pytest.raises(RecordStoreError, match="tune the network again"):
        process.compile_network(lowered, schedules(lowered, "[[], []"), tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(OutputFolderError, match="choose another output folder"):
        process.compile_network(lowered, {}, tmp_path / "file")


def test_one_that_crashes_or_hangs_the_child_is_told_and_the_next_is_compiled(
    process: CompileProcess, lowered: LoweredNetwork, tmp_path: Path
) -> None:
    with pytest.raises(CompilationError, match="the network cannot be compiled: its process ended: killed by SIGABRT"):
        process.compile_network(lowered, schedules(lowered, CRASHES), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert process.compile_network(lowered, {}, tmp_path / "out") == tmp_path / "out"


@pytest.mark.parametrize(("how", "reason"), [(KILLED, "killed by SIGKILL"), (STARVED, "MemoryError")])
def test_a_lack_of_memory_is_a_matter_of_the_machine(
    process: CompileProcess, lowered: LoweredNetwork, tmp_path: Path, how: str, reason: str
) -> None:
    with pytest.raises(MemoryLackedError, match=f"cannot be compiled: .*{reason}; free some memory"):
        process.compile_network(lowered, schedules(lowered, how), tmp_path / "out")
    assert process.compile_network(lowered, {}, tmp_path / "out") == tmp_path / "out"


def test_one_that_hangs_is_given_up(lowered: LoweredNetwork, tmp_path: Path) -> None:
    with (
        contextlib.closing(CompileProcess(0.5, CHILD)) as hasty,
        pytest.raises(CompilationError, match=r"its process gave no answer within 0\.5 s"),
    ):
        hasty.compile_network(lowered, schedules(lowered, WAITS), tmp_path / "out")


def test_closing_it_ends_who_waits_for_its_answer(lowered: LoweredNetwork, tmp_path: Path) -> None:
    process = CompileProcess(600, CHILD)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(process.compile_network, lowered, schedules(lowered, WAITS), tmp_path / "out")
        deadline = time.monotonic() + 60.0
        while not process._process._ready:  # from here on it waits for its answer, or is about to ask
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.close()
        with pytest.raises(ChildStartError):  # of no record, and no network
            waiting.result(60.0)
    assert not process._folder.path.exists()


def test_a_full_disk_is_told_before_anything_is_asked(
    process: CompileProcess, network: Network, lowered: LoweredNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("devices.networks.processes.module_file.write_module", full)
    another = import_network(network, lowered.device_class)
    with pytest.raises(DiskFullError, match="set TMPDIR"):
        process.compile_network(another, {}, tmp_path / "out")
