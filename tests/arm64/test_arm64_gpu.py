"""A Jetson's GPU, as far as a board without one goes: kernels are built here, linked and loaded there, and what is
missing is named: NVIDIA's driver, or a GPU behind it."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from devices.builds.builder import BuildWorker
from devices.client.rpc_device import RpcDevice
from devices.cuda.compiler import require_compiler
from devices.protocol import Artifact, BuildRequest
from devices.sketches.spaces import DesignSpace
from devices.targets import TargetError, resolve_target
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Candidate
from policies.space.sampling import sample
from tests.arm64.board import AARCH64, CALL_SECS, ROOT, START_SECS, Board
from tests.helpers.programs import matmul, program_task

ORIN_GPU = "nvidia/jetson-agx-orin-64gb"
CUDA_CODE = 190  # e_machine of an ELF file
TRIED = 40

LOAD = (
    "import sys, tvm\n"
    "from devices.cuda.runtime import gpu_problem, prepare_cuda\n"
    "print(gpu_problem(prepare_cuda()))\n"
    "module = tvm.runtime.load_module(sys.argv[1])\n"
    "print([each.kind for each in module.imports])\n"
    "import numpy as np\n"
    "tensors = [tvm.runtime.empty((64, 64), 'float32', tvm.cpu()) for _ in range(3)]\n"
    "try:\n"
    "    module['main'](*tensors)\n"
    "except Exception as error:\n"
    "    print(str(error).splitlines()[-1])\n"
)

pytestmark = pytest.mark.timeout(START_SECS + 6 * CALL_SECS)


@pytest.fixture(scope="module")
def kernel() -> bytes:
    """The library of a random candidate of a matrix product, as a run builds it."""
    require_compiler()  # which names what to install
    task = program_task(matmul(64, 64, 64), resolve_target(ORIN_GPU), device_class="orin")
    sketch = DesignSpace(task).sketches[0]
    with BuildWorker() as worker:
        for row in sample(sketch, TRIED, np.random.default_rng(7)):
            candidate = Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row)))
            built = worker.build(BuildRequest(task, candidate, CALL_SECS))
            if isinstance(built, Artifact):  # another may need too many threads
                return built.library
    pytest.fail(f"none of {TRIED} candidates was built: {built}")


@pytest.fixture
def driver_without_gpu(tmp_path: Path) -> Path:
    """A folder with a libcuda.so.1 for the board: each of its functions answers that there is no GPU."""
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    assert compiler, "no C compiler for aarch64 on this machine: apt-get install gcc-aarch64-linux-gnu"
    names = [
        *("cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString", "cuLaunchKernelEx"),
        *("cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeTiled"),  # TVM's
        *("cuInit", "cuDriverGetVersion", "cuGetProcAddress_v2", "cuDeviceGetCount"),  # CUDA's runtime library's
    ]
    no_device = 100  # CUDA_ERROR_NO_DEVICE
    source = tmp_path / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return {no_device}; }}\n" for name in names))
    folder = tmp_path / "driver"
    folder.mkdir()
    subprocess.run([compiler, "-shared", "-nostdlib", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    return folder


def on_board(board: Board, code: str, *arguments: str, libraries: Path | None = None) -> str:
    """What a program says that runs on the board with TVM's runtime alone, as the device server does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TVM_USE_RUNTIME_LIB": "1"}
    if libraries is not None:
        environment["LD_LIBRARY_PATH"] = str(libraries)
    command = [board.python, "-c", code, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECS, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def test_a_kernel_has_host_code_of_the_board_and_machine_code_of_its_gpu(kernel: bytes) -> None:
    assert int.from_bytes(kernel[18:20], "little") == AARCH64
    found = re.search(rb"// fleet-tune machine code (\S+) ([A-Za-z0-9+/=]+)\n", kernel)
    assert found is not None
    code = base64.b64decode(found[2], validate=True)
    assert (found[1], struct.unpack_from("<H", code, 18)) == (b"sm_87", (CUDA_CODE,))
    assert (struct.unpack_from("<I", code, 48)[0] >> 8) & 0xFF == 87
    assert b".text.main_kernel" in code


def test_the_boards_loader_takes_its_host_code(board: Board, kernel: bytes, tmp_path: Path) -> None:
    """Every symbol is found there."""
    (tmp_path / "kernel.so").write_bytes(kernel)
    code = (
        "import ctypes, os, sys, tvm\n"
        "library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)\n"
        "print(bool(library.__tvm_ffi_main))\n"
    )
    assert on_board(board, code, str(tmp_path / "kernel.so")) == "True\n"


def test_with_a_driver_and_no_gpu_the_kernel_is_loaded_and_refused_by_cuda(
    board: Board, kernel: bytes, driver_without_gpu: Path, tmp_path: Path
) -> None:
    (tmp_path / "kernel.so").write_bytes(kernel)
    said = on_board(board, LOAD, str(tmp_path / "kernel.so"), libraries=driver_without_gpu)
    problem, imported, refused = said.splitlines()
    assert problem == "CUDA finds no GPU that this user may open"
    assert imported == "['cuda']"
    assert refused.startswith("CUDA Runtime Error: cudaErrorInsufficientDriver")


def test_without_a_driver_the_device_is_refused_and_what_is_missing_is_named(board: Board) -> None:
    config = DeviceConfig(name="orin", connect=f"127.0.0.1:{board.port}", target=ORIN_GPU)
    device = RpcDevice(config, "127.0.0.1", board.port)
    missing = r"device orin: its server can use no GPU \(OSError: libcuda\.so\.1: cannot open"
    with contextlib.closing(device), pytest.raises(TargetError, match=missing):
        device.fingerprint()
