"""An aarch64 device server under qemu's user emulation, reached over a real TVM RPC tracker, cross-compiled for here.

Not part of ``make test``: ``make test-arm64`` prepares the board (tests/arm64/board.sh) and runs this. Nothing is
skipped: what is missing fails and says what to install.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te

from devices.builds import linking
from devices.builds.linking import foreign_linkers, link
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.client.rpc_device import RpcDevice
from devices.client.session import RpcSession
from devices.client.workbench import Workbench
from devices.host.children.parent import end_with_parent
from devices.rpc.remote_linking import is_archive
from devices.sketches.byte_operators import INTEGER_DOTS, IntegerDot
from devices.targets import parse_target, resolve_target
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Outcome
from fleet_tune.base.records.stores.reader import RecordReader
from tests.arm64.board import AARCH64, CALL_SECS, KEY, ORIN, ROOT, START_SECS, Board
from tests.helpers import half_dots
from tests.helpers.integer_dots import ROWS, ends, operands, scheduled

MODEL = "tests/arm64/small_network.py:small"
RUN_SECS = 400.0
NETWORK_SECS = 300.0
TRIALS = 32

# The longest test tunes and runs the network.
pytestmark = pytest.mark.timeout(START_SECS + RUN_SECS + NETWORK_SECS + 4 * CALL_SECS)


def kernel(target: str) -> tvm.runtime.Module:
    a = te.placeholder((64,), name="A")
    b = te.compute((64,), lambda i: te.exp(a[i]) + 1.0, name="B")
    function = te.create_prim_func([a, b]).with_attr("global_symbol", "main")
    return tvm.tirx.build(tvm.IRModule({"main": function}), target=parse_target(target))


def runs_there(session: RpcSession, library: bytes) -> None:
    """The kernel's results on the board are numpy's."""
    with session.deadline(CALL_SECS):
        bench = Workbench(session, "cpu", 1 << 20)
        inputs = np.linspace(-3, 3, 64, dtype=np.float32)
        a, b = tvm.runtime.tensor(inputs, bench.device), tvm.runtime.tensor(np.zeros(64, np.float32), bench.device)
        bench.load(library)["main"](a, b)
        np.testing.assert_allclose(b.numpy(), np.exp(inputs) + 1.0, rtol=1e-5)


def test_the_board_is_aarch64(board: Board) -> None:
    code = "import platform, subprocess, sys; print(platform.machine(), sys.version_info[:2])"
    said = subprocess.run([board.python, "-c", code], capture_output=True, text=True, timeout=CALL_SECS, check=True)
    assert said.stdout.split()[0] == "aarch64"
    assert platform.machine() == "x86_64"


def test_every_linker_of_this_host_makes_kernels_that_run_there(
    session: RpcSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    linkers = foreign_linkers("aarch64-linux-gnu")
    assert linkers, "no linker for aarch64 on this machine: apt-get install gcc-aarch64-linux-gnu"
    target = resolve_target(ORIN, threads=2)
    for linker in linkers:
        monkeypatch.setattr(linking, "find_linker", lambda _target, found=linker: found)
        library = link(kernel(target), target)
        assert int.from_bytes(library[18:20], "little") == AARCH64, linker
        runs_there(session, library)


def test_the_board_links_what_this_host_cannot(session: RpcSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "find_linker", lambda _target: None)
    target = resolve_target(ORIN, threads=2)
    archive = link(kernel(target), target)
    assert is_archive(archive)
    runs_there(session, archive)


@pytest.mark.parametrize("dot", INTEGER_DOTS, ids=lambda dot: dot.name.rsplit(".", 1)[-1])
@pytest.mark.parametrize("attributes", [[], ["+dotprod"], ["+dotprod", "+i8mm"]], ids=",".join)
def test_products_of_bytes_are_exact_there(session: RpcSession, dot: IntegerDot, attributes: list[str]) -> None:
    """By multiplications, by sdot and udot, and by usdot: the emulator has them all."""
    use_kernel_passes()
    mattr = {"mattr": attributes} if attributes else {}
    target = resolve_target({"kind": "llvm", "mcpu": "generic", "mtriple": "aarch64-linux-gnu", **mattr}, threads=1)
    a, b = ends(dot, 12 * dot.terms, 80)
    result = np.zeros((ROWS, 80), np.int32)
    for lanes in (1, 2, 4, 10, 16):
        built = tvm.tirx.build(scheduled(dot, 12, 80, lanes), target=parse_target(target))
        with session.deadline(CALL_SECS):
            bench = Workbench(session, "cpu", 1 << 20)
            tensors = [tvm.runtime.tensor(each, bench.device) for each in (*operands(dot, a, b), result)]
            bench.load(link(built, target))["main"](*tensors)
            np.testing.assert_array_equal(tensors[-1].numpy(), a @ b)


@pytest.mark.parametrize("attributes", [[], ["+bf16"]], ids=",".join)
def test_products_of_bfloat16_are_right_there(session: RpcSession, attributes: list[str]) -> None:
    """By two multiply-adds of float32, and by bfdot."""
    use_kernel_passes()
    mattr = {"mattr": attributes} if attributes else {}
    target = resolve_target({"kind": "llvm", "mcpu": "generic", "mtriple": "aarch64-linux-gnu", **mattr}, threads=1)
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((half_dots.ROWS, 24), (24, 10)))
    packed = np.ascontiguousarray(b.reshape(-1, 2, 10).swapaxes(1, 2)).view("<i4")[..., 0]
    result = np.zeros((half_dots.ROWS, 10), np.float32)
    for lanes in (1, 2, 4, 10):
        built = tvm.tirx.build(half_dots.scheduled(24, 10, lanes), target=parse_target(target))
        with session.deadline(CALL_SECS):
            bench = Workbench(session, "cpu", 1 << 20)
            tensors = [tvm.runtime.tensor(each, bench.device) for each in (a, packed, result)]
            bench.load(link(built, target))["main"](*tensors)
            expected = a.astype(np.float64) @ b.astype(np.float64)
            np.testing.assert_allclose(tensors[-1].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_its_fingerprint_is_that_of_a_neon_cpu(board: Board) -> None:
    config = DeviceConfig(name="board", connect=f"127.0.0.1:{board.port}", target=ORIN, threads=2)
    with contextlib.closing(RpcDevice(config, "127.0.0.1", board.port)) as device:
        found = device.fingerprint()
    assert found.device_class.name == "cortex-a78ae-2"
    assert (found.abstraction.kind, found.abstraction.cores) == ("cpu", 2)
    assert (found.abstraction.lanes, found.abstraction.registers) == (4, 32)
    assert found.tvm_version == tvm.__version__
    assert found.probe_secs > 0


def test_both_kinds_of_device_are_tuned_in_one_run(board: Board, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        '[[device]]\nname = "here"\nthreads = 1\n'
        f'[[device]]\nname = "{KEY}"\nthreads = 2\nconnect = "tracker://127.0.0.1:{board.tracker}/{KEY}"\n'
        f'target = {{ kind = "llvm", mcpu = "{ORIN["mcpu"]}", mtriple = "{ORIN["mtriple"]}" }}\n'
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fleet_tune", "tune", MODEL, "--fleet", str(fleet), "--trials", str(TRIALS)]
    done = subprocess.run(
        [*command, "--out", str(out), "--json"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECS,
        preexec_fn=end_with_parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    with RecordReader(out / "records.db") as reader:
        records = list(reader)
    for name in ("here", KEY):
        mine = [record for record in records if record.device_id == name]
        good = [record for record in mine if record.measurement.outcome is Outcome.OK]
        assert good, f"no good measurement on {name}: {[record.measurement for record in mine]}"
        assert any(record.measurement.verified for record in good), f"no checked result on {name}"
        wrong = [record for record in mine if record.measurement.outcome is Outcome.WRONG_OUTPUT]
        assert not wrong, f"wrong results on {name}: {wrong}"

    result = json.loads(done.stdout.strip().splitlines()[-1])
    folders = {Path(network["folder"]).name: network for network in result["networks"]}
    assert "cortex-a78ae-2" in folders
    assert len(folders) == 2
    (here,) = [network for name, network in folders.items() if name != "cortex-a78ae-2"]
    assert here["max_rel_error"] < 1e-4
    theirs = out / "cortex-a78ae-2"
    assert int.from_bytes((theirs / "network.so").read_bytes()[18:20], "little") == AARCH64
    difference = network_error_there(board, theirs, tmp_path)
    assert difference < 1e-4

    # What was built for either of them is kept.
    ran = {record.candidate.id for record in records if record.measurement.outcome is Outcome.OK}
    assert len(list((out / "artifacts").glob("??/*.artifact"))) >= len(ran)


def network_error_there(board: Board, folder: Path, tmp_path: Path) -> float:
    """The compiled network's largest relative error against PyTorch's, run on the board from a copy of its folder."""
    import torch

    from tests.arm64.small_network import small

    network, (example,) = small()
    with torch.no_grad():
        expected = network(example).numpy()
    shutil.copytree(folder, tmp_path / "copied")
    np.save(tmp_path / "input.npy", example.numpy())
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from devices.networks.compiled.network import CompiledNetwork\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "network = CompiledNetwork.read(folder / 'copied')\n"
        "np.save(folder / 'output.npy', network(np.load(folder / 'input.npy')))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [board.python, "-c", code], capture_output=True, text=True, timeout=NETWORK_SECS, env=environment
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = np.load(tmp_path / "output.npy")
    return float(np.abs(found - expected).max() / np.abs(expected).max())
