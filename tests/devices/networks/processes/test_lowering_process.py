"""Lowering in a child process: what a crash, a hang or a lack of memory costs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tvm_ffi

from devices.host.warm_process import ChildStartError
from devices.networks.frontend import Network, load_network
from devices.networks.processes import exchange_folder
from devices.networks.processes.lowering_process import LoweringProcess
from devices.networks.tasks.lowering import LoweredNetwork, agreement, import_network
from devices.targets import resolve_target
from examples.networks import small_cnn
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import DiskFullError, NetworkError, UncheckedError, UnsupportedNetworkError
from tests.helpers.lowering_child import write_stand_in

CPU = DeviceClass("cpu", resolve_target("native", 2))
CRASH = "its process ended: killed by SIGSEGV"

Opened = Callable[..., LoweringProcess]


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(small_cnn())


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Starts a process in which the passes named misbehave."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with contextlib.ExitStack() as stack:

        def start(answer_secs: float = 600.0, **misbehave: str) -> LoweringProcess:
            process = LoweringProcess(write_stand_in(tmp_path, misbehave), answer_secs)
            return stack.enter_context(contextlib.closing(process))

        yield start


def agrees(lowered: LoweredNetwork, network: Network, process: LoweringProcess) -> None:
    outputs = process.outputs(lowered, network.example_inputs)
    assert agreement(lowered, outputs, network.framework_outputs())[1] < 1e-5


def test_the_child_lowers_as_this_process_does(network: Network, opened: Opened) -> None:
    process = opened()
    classes = (CPU, DeviceClass("a/gpu", resolve_target({"kind": "cuda", "arch": "sm_87"})))
    for device_class in classes:
        lowered, here = process.lowered(network, device_class), import_network(network, device_class)
        assert (lowered.name, lowered.fingerprint, lowered.device_class) == (
            network.name,
            network.fingerprint,
            device_class,
        )
        for each in ("tasks", "workloads", "inputs", "outputs", "left_out", "quantized", "products", "halves"):
            assert getattr(lowered, each) == getattr(here, each)
        assert tvm_ffi.structural_equal(lowered.module, here.module)
        agrees(lowered, network, process)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("crash", CRASH),
        ("kill", "its process ended: killed by SIGKILL"),
        (
            "bad_alloc",
            "its process ended: killed by SIGABRT; terminate called after throwing an instance of 'std::bad_alloc'",
        ),
        ("in a word", "TVM fails at it (RuntimeError: in a word)"),
    ],
)
def test_an_optional_step_that_takes_its_process_down_is_left_out(
    network: Network, opened: Opened, how: str, reason: str
) -> None:
    process = opened(ConvertLayout=how)
    lowered = process.lowered(network, CPU)
    assert lowered.left_out == (("the choice of layouts", reason),)
    agrees(lowered, network, process)


def test_an_optional_step_that_hangs_is_left_out(network: Network, opened: Opened) -> None:
    process = opened(answer_secs=10.0, ConvertLayout="hang")
    reason = "its process gave no answer within 10 s"
    assert process.lowered(network, CPU).left_out == (("the choice of layouts", reason),)


def test_a_step_that_only_what_is_optional_makes_fail_is_tried_without_that(
    network: Network, opened: Opened, tmp_path: Path
) -> None:
    process = opened(LegalizeOps="crash")
    process._process._ready_child()
    write_stand_in(tmp_path, {})  # the next process does not crash, as where an earlier step had led TVM astray
    lowered = process.lowered(network, CPU)
    reasons = dict(lowered.left_out)
    assert {"the rewrites of the graph", "the choice of layouts"} < reasons.keys()
    assert set(reasons.values()) == {f"with it TVM fails at the lowering of operators ({CRASH})"}
    agrees(lowered, network, process)


@pytest.mark.parametrize(
    ("how", "reason", "next_step"),
    [
        ("crash", CRASH, "simplify the network, and report it"),
        ("kill", "its process ended: killed by SIGKILL", "it needs a machine with more memory, or must be smaller"),
        ("no such rule", "RuntimeError: no such rule", "simplify the network, and report it"),
    ],
)
def test_a_step_that_fails_without_anything_optional_ends_in_one_line(
    network: Network, opened: Opened, how: str, reason: str, next_step: str
) -> None:
    with pytest.raises(UnsupportedNetworkError) as raised:
        opened(LegalizeOps=how).lowered(network, CPU)
    assert raised.value.problem == f"_SmallCnn cannot be lowered: the lowering of operators fails: {reason}"
    assert raised.value.next_step == next_step


@pytest.mark.parametrize("how", ["crash", "no such function"])
def test_an_untuned_network_that_crashes_is_told(network: Network, opened: Opened, how: str) -> None:
    process = opened(run=how)
    with pytest.raises(NetworkError, match=r"SmallCnn fails when it is run untuned: .*(SIGSEGV|no such function)"):
        process.outputs(process.lowered(network, CPU), network.example_inputs)


@pytest.mark.parametrize("how", ["kill", "bad_alloc", "hang"])
def test_an_untuned_network_that_cannot_be_run_here_stays_unchecked(network: Network, opened: Opened, how: str) -> None:
    process = opened(answer_secs=10.0, run=how)
    with pytest.raises(UncheckedError, match=r"SIGKILL|bad_alloc|no answer within 10 s"):
        process.outputs(process.lowered(network, CPU), network.example_inputs)


def test_what_the_user_is_to_mend_is_told_as_it_is(
    network: Network, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("devices.networks.processes.module_file.write_module", full)
    with pytest.raises(DiskFullError, match=r"No space left on device; free some .*TMPDIR"):
        opened().lowered(network, CPU)


def test_a_child_that_cannot_start_is_told(network: Network) -> None:
    with (
        contextlib.closing(LoweringProcess("no_such_module")) as process,
        pytest.raises(ChildStartError, match="No module named no_such_module"),
    ):
        process.lowered(network, CPU)


def test_nothing_is_left_when_it_is_closed(network: Network, opened: Opened) -> None:
    process = opened()
    lowered = process.lowered(network, CPU)
    folder = process._folder.path
    assert folder.is_dir()
    process.close()
    assert not folder.exists()
    assert process._process._child is None
    assert len(lowered.tasks) > 0
    with pytest.raises(ChildStartError, match="closed"):
        process.lowered(network, CPU)


def test_its_files_go_with_a_parent_that_is_killed() -> None:
    code = """
from devices.networks.processes.lowering_process import LoweringProcess
process = LoweringProcess()
process._process._ready_child()
print(process._folder.path, flush=True)
input()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().strip())
        assert folder.is_dir()
        parent.kill()
    deadline = time.monotonic() + 60.0
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.05)


def test_large_files_go_where_there_is_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    assert exchange_folder._roomy_place() in ("/var/tmp", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert exchange_folder._roomy_place() is None
