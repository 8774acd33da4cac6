"""CUDA candidates become machine code without a GPU: a real compiler (NVRTC or nvcc) takes what TVM generates."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from devices.builds.builder import BuildWorker
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.builds.worker import PASS_OPTIONS
from devices.cuda import compiler as cuda_compiler
from devices.cuda.compiler import (
    CudaCompiler,
    CudaCompilerError,
    CudaSourceError,
    compiling_for,
    install_loader,
    require_compiler,
    split_code,
    with_code,
)
from devices.protocol import Artifact, BuildRequest
from devices.sketches.spaces import Scheduled, ScheduleError
from devices.targets import parse_target
from fleet_tune.base.domain import Candidate
from policies.analysis.launch import shared_bytes
from policies.space.sampling import sample
from tests.devices.sketches.test_symbolic_launch import threads_per_block
from tests.helpers.workloads import space, task

ARCHES = ("sm_80", "sm_87", "sm_90")
MAX_THREADS, MAX_SHARED = 1024, 49152
BUILT = ("wide-matmul", "half-matmul", "conv3", "half-batched", "depthwise", "softmax", "transpose")
CANDIDATES = 2
ELF = b"\x7fELF"


@pytest.fixture(scope="module")
def compiler() -> CudaCompiler:
    """CI installs one; a machine without one says so."""
    use_kernel_passes()
    try:
        return require_compiler()
    except CudaCompilerError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@cache
def candidates(arch: str, workload: str, over: bool) -> tuple[Candidate, ...]:
    """Random candidates of the first sketch, within the limits of a block's threads and shared memory or over them."""
    sketch = space(arch, workload).sketches[0]
    rows = sample(sketch, 400, np.random.default_rng(7))
    too_large = shared_bytes(sketch, rows) > MAX_SHARED
    fits = ~too_large & (threads_per_block(sketch, rows) <= MAX_THREADS)
    chosen = rows[too_large if over else fits][: 20 * CANDIDATES]
    vectors = [tuple(int(value) for value in row) for row in chosen]
    return tuple(Candidate(task(arch, workload).id, sketch.index, sketch.id, vector) for vector in vectors)


def machine_code(arch: str, scheduled: Scheduled) -> tuple[str, bytes]:
    target = task(arch, "conv3").device_class.target
    with tvm.transform.PassContext(config=PASS_OPTIONS), compiling_for(target):
        module = tvm.tirx.build(scheduled.module, target=parse_target(target))
    (device_module,) = module.imports
    _source, built_for, code = split_code(device_module.inspect_source("cuda"))
    return built_for, code


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("workload", BUILT)
def test_random_candidates_become_machine_code(compiler: CudaCompiler, arch: str, workload: str) -> None:
    assert compiler is require_compiler()
    built = 0
    for candidate in candidates(arch, workload, over=False):
        try:
            scheduled = space(arch, workload).schedule(candidate)
        except ScheduleError:
            continue  # another limit of the device, such as the length of a vector: TVM's check refuses it
        built_for, code = machine_code(arch, scheduled)
        assert built_for == arch
        assert code.startswith(ELF)
        built += 1
        if built == CANDIDATES:
            return
    pytest.fail(f"only {built} of {CANDIDATES} candidates could be scheduled")


@pytest.mark.parametrize("arch", ARCHES)
def test_tensor_cores_are_used_for_half_precision(compiler: CudaCompiler, arch: str) -> None:
    """With sums in single precision, which TVM alone does not build (see devices.cuda.lowering)."""
    assert compiler is require_compiler()
    (sketch, *_) = space(arch, "half-matmul").sketches
    assert sketch.rule == "tensorize"
    target = task(arch, "half-matmul").device_class.target
    for candidate in candidates(arch, "half-matmul", over=False):
        with contextlib.suppress(ScheduleError):
            scheduled = space(arch, "half-matmul").schedule(candidate)
            break
    with tvm.transform.PassContext(config=PASS_OPTIONS):
        module = tvm.tirx.build(scheduled.module, target=parse_target(target))
    assert "nvcuda::wmma::mma_sync" in module.imports[0].inspect_source("cuda")


@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_refused_symbolically_is_refused_by_the_compiler(compiler: CudaCompiler, arch: str) -> None:
    """And by TVM's own check, which it is built without here."""
    assert compiler is require_compiler()
    designs = space(arch, "wide-matmul")
    refused = candidates(arch, "wide-matmul", over=True)[:2]
    assert len(refused) == 2
    for candidate in refused:
        with pytest.raises(ScheduleError, match="VerifyGPUCode"):
            designs.schedule(candidate)
        schedule = designs.apply(candidate)
        schedule.enter_postproc()
        for postproc in designs.postprocs:
            if not isinstance(postproc, ms.postproc.VerifyGPUCode):
                assert postproc.apply(schedule)
        with pytest.raises(Exception, match="too much shared data"):
            machine_code(arch, Scheduled(schedule.mod, (), (), (), (), ""))


@pytest.mark.parametrize("arch", ARCHES)
def test_a_worker_builds_a_library_with_machine_code_in_it(compiler: CudaCompiler, arch: str) -> None:
    assert compiler is require_compiler()
    with BuildWorker() as worker:
        for candidate in candidates(arch, "conv3", over=False):
            built = worker.build(BuildRequest(task(arch, "conv3"), candidate, 120))
            if isinstance(built, Artifact):
                break
    assert isinstance(built, Artifact)
    assert built.library.startswith(ELF)
    assert f"{cuda_compiler._MARK}{arch} ".encode() in built.library


def test_a_source_that_is_wrong_is_refused_with_its_first_error(compiler: CudaCompiler) -> None:
    with pytest.raises(CudaSourceError, match=r'sm_87.*"nowhere" is undefined'):
        compiler.compile('extern "C" __global__ void f(int* x) { x[0] = nowhere; }', "sm_87")


def test_an_architecture_that_the_compiler_does_not_know_is_refused(compiler: CudaCompiler) -> None:
    with pytest.raises(CudaSourceError):
        compiler.compile('extern "C" __global__ void f() {}', "sm_11")


def test_source_and_code_come_apart_again() -> None:
    text = with_code("__global__ void f() {}\n", "sm_90", b"\0\x7fcode")
    assert split_code(text) == ("__global__ void f() {}\n", "sm_90", b"\0\x7fcode")
    assert split_code("plain source") == ("plain source", "", b"")
    with pytest.raises(ValueError, match="damaged"):
        split_code("// fleet-tune machine code sm_90 a?b\nsource")


def test_a_device_takes_the_machine_code_that_came_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler of its own; a source alone then says what to install."""
    import tvm_ffi

    monkeypatch.setattr(cuda_compiler, "find_compiler", lambda: None)
    before = tvm_ffi.get_global_func("tvm_callback_cuda_compile")
    try:
        install_loader(lambda: "sm_90")
        load = tvm_ffi.get_global_func("tvm_callback_cuda_compile")
        assert bytes(load(with_code("source", "sm_90", b"\x7fELFcode"))) == b"\x7fELFcode"
        with pytest.raises(Exception, match="install the Python packages of the extra"):
            load("source alone")
    finally:
        tvm_ffi.register_global_func("tvm_callback_cuda_compile", before, override=True)


def test_the_compiler_that_a_user_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "my-nvcc"
    named.write_text("#!/bin/sh\n")
    named.chmod(0o755)
    monkeypatch.setenv("FLEET_TUNE_NVCC", str(named))
    assert cuda_compiler.find_compiler.__wrapped__() == CudaCompiler(None, str(named), ())
    monkeypatch.setenv("FLEET_TUNE_NVCC", str(tmp_path / "nothing"))
    with pytest.raises(CudaCompilerError, match="which is no program"):
        cuda_compiler.find_compiler.__wrapped__()
