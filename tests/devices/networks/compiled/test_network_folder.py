"""Compiling a network with traces, and loading the folder again."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm_ffi import structural_equal

from devices.builds import executables
from devices.builds.executables import Executable, build, kernel_calls
from devices.builds.worker import KernelCompiler
from devices.networks.array_conversion import can_pass_directly, input_signature, to_tvm
from devices.networks.compiled import network_folder
from devices.networks.compiled.network_folder import (
    compile_network,
    load,
    publish,
    schedule_kernels,
    staging,
    update_manifest,
)
from devices.networks.frontend import Network, load_network
from devices.networks.input_shapes import NetworkInputError
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network
from devices.protocol import encode_task
from devices.sketches.contiguous_loops import in_contiguous_order
from devices.sketches.intrinsics import load_intrinsics
from devices.sketches.spaces import parse_module
from devices.targets import parse_target, resolve_target
from examples import networks
from fleet_tune.base.domain import DeviceClass, Task
from fleet_tune.base.errors import DiskFullError, OutputFolderError, RecordStoreError

ROOT = Path(__file__).resolve().parents[4]
CPU = DeviceClass("cpu", resolve_target("native", 2))


def random_trace(task: Task, seed: int) -> str:
    """A random schedule of MetaSchedule's own space, with all its post-processors (RewriteLayout among them)."""
    load_intrinsics(CPU.target)
    module = parse_module(task.workload.module)
    context = ms.TuneContext(
        module, target=parse_target(CPU.target), space_generator="post-order-apply", rand_state=seed
    )
    space = context.generate_design_space()[0]
    for attempt in range(seed, seed + 50):
        schedule = Schedule(module, seed=attempt, debug_mask="none")
        Trace(space.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        if all(postproc.apply(schedule) for postproc in context.space_generator.postprocs):
            return json.dumps(plain(schedule.trace.as_json()))
    raise AssertionError(f"no valid schedule of {task.workload.name}")


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own. TVM loads torch where it finds it, which takes as long as all the rest."""
    program = f"import sys; sys.modules['torch'] = None\n{code}"
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def plain(value: Any) -> Any:
    """TVM's containers as Python values."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bool | int | float) or value is None:
        return value
    return plain(value.value) if hasattr(value, "value") else [plain(item) for item in value]


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network((networks.small_cnn()[0], networks.small_cnn()[1]))


@pytest.fixture(scope="module")
def lowered(network: Network) -> LoweredNetwork:
    return import_network(network, CPU)


@pytest.fixture(scope="module")
def best(lowered: LoweredNetwork) -> dict[str, str | None]:
    """A trace for every task but the last: that one stays unscheduled."""
    traces: dict[str, str | None] = {
        task.id: random_trace(task, seed) for seed, task in enumerate(lowered.tasks[:-1], 1)
    }
    return {**traces, lowered.tasks[-1].id: None}


@pytest.fixture(scope="module")
def folder(lowered: LoweredNetwork, best: dict[str, str | None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = lowered.tasks[1]
    extra = {"threads": 2, "tasks": {task.id: {"best_secs": 1e-4, "rule": "multi-level-tiling"}}}
    return compile_network(lowered, best, tmp_path_factory.mktemp("out") / "cpu", extra)


two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process may use one CPU")


def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_the_tuned_network_agrees_with_torch(folder: Path, network: Network) -> None:
    output = load(folder)(*network.example_inputs)
    assert compare((output,), network.framework_outputs())[1] < 1e-5


def packing_calls(executable: Executable) -> list[str]:
    """Kernels that ``main`` runs on parameters alone: work that should have been done at compile time."""
    main = executable.lowered["main"]
    parameters = set(main.params[len(main.params) - len(executable.parameters) :])
    return [
        call.args[0].name_hint
        for call in kernel_calls(main)
        if len(call.args[1].fields) and all(x in parameters for x in call.args[1].fields)
    ]


def test_weights_are_packed_at_compile_time(lowered: LoweredNetwork, best: dict[str, str | None]) -> None:
    executable = build(schedule_kernels(lowered, best), CPU.target)
    assert packing_calls(executable) == []
    # MetaSchedule's tiles of a 3x3x16x32 weight have more than four dimensions.
    assert max(array.ndim for array in executable.parameters) > 4
    weights = sum(array.size for array in executable.parameters)
    assert weights == sum(array.size for array in build(lowered.module, CPU.target).parameters)


def test_kernels_without_a_record_have_a_contiguous_order(lowered: LoweredNetwork) -> None:
    made, ordered = schedule_kernels(lowered, {}), in_contiguous_order(lowered.module)
    assert structural_equal(made, ordered)
    assert not structural_equal(made, lowered.module)


def test_a_folder_that_was_compiled_anew_is_loaded_anew(tmp_path: Path) -> None:
    """The system's loader gives out again what it has loaded from the same path."""
    numbers = np.array([1.0, 4.0], np.float32)
    for module, expected in ((Doubled(), 2 * numbers), (Squared(), numbers**2)):
        lowered = import_network(load_network((module, (torch.ones(2),))), CPU)
        loaded = load(compile_network(lowered, {}, tmp_path / "out"))
        np.testing.assert_allclose(loaded(numbers), expected)


class Passing(nn.Module):
    """Returns an input, a weight and something new."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(64.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x, self.weight, x + self.weight


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.numpy(), lambda x: x.numpy()[::-1]])
def test_who_writes_to_an_output_changes_nothing_else(convert: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    given = convert(torch.ones(64))
    lowered = import_network(load_network((Passing(), (torch.ones(64),))), CPU)
    loaded = load(compile_network(lowered, {}, tmp_path / "out"))
    first, second = loaded(given), loaded(given)
    for output in first:
        output[:] = -1
    assert (np.asarray(given) == 1).all()
    weight = np.arange(64)
    for outputs in (second, loaded(given)):
        for output, expected in zip(outputs, (np.ones(64), weight, weight + 1), strict=True):
            np.testing.assert_array_equal(np.asarray(output), expected)


def test_a_network_without_weights_is_compiled_in_one_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled, compile_ = [], executables._compile
    monkeypatch.setattr(executables, "_compile", lambda *given: compiled.append(given) or compile_(*given))
    given = torch.linspace(-1, 1, 64)
    loaded = load(compile_network(import_network(load_network((nn.ReLU(), (given,))), CPU), {}, tmp_path / "out"))
    np.testing.assert_array_equal(loaded(given).numpy(), given.relu().numpy())
    assert len(compiled) == 1


def test_inputs_are_read_where_they_are() -> None:
    aligned = torch.ones(1024)
    assert to_tvm(aligned, tvm.cpu()).data_ptr() == aligned.data_ptr()
    assert to_tvm(aligned[1:], tvm.cpu()).data_ptr() % 64 == 0
    np.testing.assert_array_equal(to_tvm(torch.arange(8.0)[::2], tvm.cpu()).numpy(), [0, 2, 4, 6])
    frozen = np.ones(1024)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(to_tvm(frozen, tvm.cpu()).numpy(), frozen)


def test_numbers_change_with_the_input(folder: Path) -> None:
    module, (example,) = networks.small_cnn()
    loaded = load(folder)
    for seed in range(3):
        image = torch.randn(example.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            np.testing.assert_allclose(loaded(image.numpy()), module(image).numpy(), atol=1e-5)


def test_torch_in_torch_out(folder: Path, network: Network) -> None:
    loaded = load(folder)
    image = torch.from_numpy(network.example_inputs[0])
    output = loaded(image)
    assert isinstance(output, torch.Tensor)
    np.testing.assert_array_equal(output.numpy(), loaded(network.example_inputs[0]))
    # Neither contiguous nor aligned.
    wide = torch.zeros(1, 3, 32, 33)
    wide[..., 1:] = image
    for given in (image.clone(), wide[..., 1:], image.clone().requires_grad_(), nn.Parameter(image.clone())):
        again = loaded(given)
        assert isinstance(again, torch.Tensor)
        assert not again.requires_grad
        np.testing.assert_array_equal(again.numpy(), output.numpy())
        again.zero_()  # nothing else lies there
    with torch.no_grad():  # where torch compares less
        again = loaded(image.clone().requires_grad_())
    assert not again.requires_grad
    np.testing.assert_array_equal(again.numpy(), output.numpy())
    assert isinstance(loaded(image.numpy()), np.ndarray)


@pytest.mark.parametrize("in_one_call", [True, False])
def test_tensors_that_tvm_reads_where_they_are(in_one_call: bool) -> None:
    aligned = torch.ones(32, 32)
    signature = input_signature((aligned,))
    assert signature is not None
    assert signature.is_same is not None  # this torch has it
    if not in_one_call:
        signature = replace(signature, is_same=None)
    assert can_pass_directly((torch.zeros(32, 32),), signature)
    scalars = input_signature((torch.ones(()), torch.ones(2)))
    assert scalars is not None
    assert can_pass_directly((torch.ones(()), torch.zeros(2)), scalars)
    others: tuple[Any, ...] = (
        torch.ones(32, 33)[:, 1:],
        torch.ones(32, 32).T,
        torch.ones(1025)[1:].view(32, 32),
        torch.ones(32, 32, requires_grad=True),
        torch.ones(32, 32, dtype=torch.float64),
        torch.ones(1024),
        nn.Parameter(torch.ones(32, 32), requires_grad=False),  # of a class of its own
        np.ones((32, 32), np.float32),
    )
    assert not any(can_pass_directly((each,), signature) for each in others)
    assert not can_pass_directly((aligned, aligned), signature)
    assert not can_pass_directly((), signature)
    assert input_signature(()) is input_signature((aligned, aligned.numpy())) is input_signature((others[-2],)) is None


@pytest.mark.parametrize(
    "given", [torch.ones(1, 3, 32, 31), torch.ones(1, 3, 32, 32, dtype=torch.float64)], ids=["shape", "type"]
)
def test_what_does_not_fit_is_refused_after_what_did(folder: Path, given: torch.Tensor) -> None:
    loaded = load(folder)
    loaded(torch.ones(1, 3, 32, 32))
    with pytest.raises(NetworkInputError, match="input 'x' is"):
        loaded(given)
    with pytest.raises(NetworkInputError, match="2 inputs given"):
        loaded(given, given)


def test_the_manifest(folder: Path, lowered: LoweredNetwork, network: Network, best: dict[str, str | None]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["schema"], manifest["model"], manifest["threads"]) == (1, "_SmallCnn", 2)
    assert manifest["model_fingerprint"] == network.fingerprint
    assert manifest["target"] == json.loads(CPU.target)
    assert manifest["inputs"] == [{"name": "x", "shape": [1, 3, 32, 32], "dtype": "float32"}]
    assert manifest["outputs"] == [{"shape": [1, 10], "dtype": "float32"}]
    assert set(manifest["versions"]) == {"fleet_tune", "tvm"}
    tuned, untuned = manifest["tasks"][1], manifest["tasks"][-1]
    assert (tuned["hash"], tuned["weight"], tuned["rule"]) == (lowered.tasks[1].workload.hash, 1, "multi-level-tiling")
    assert tuned["gflops"] == pytest.approx(lowered.tasks[1].workload.flop / 1e-4 / 1e9)
    assert tuned["trace"] == json.loads(best[lowered.tasks[1].id] or "")
    assert (untuned["rule"], untuned["trace"], untuned["best_secs"]) == ("unscheduled", None, None)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "network.so", "params.safetensors"]


def test_the_same_network_is_not_compiled_again(
    folder: Path, tmp_path: Path, lowered: LoweredNetwork, best: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(folder, tmp_path / "out"))
    before = (out / "network.so").stat().st_mtime_ns
    with monkeypatch.context() as patched:
        patched.setattr(network_folder, "build", lambda *_: pytest.fail("built again"))
        compile_network(lowered, best, out, {"note": "new"})
    assert (out / "network.so").stat().st_mtime_ns == before
    assert load(out).manifest["note"] == "new"
    compile_network(lowered, dict.fromkeys(best), out)  # other schedules
    assert (out / "network.so").read_bytes() != (folder / "network.so").read_bytes()
    (out / "network.so").write_bytes(b"damaged")
    compile_network(lowered, dict.fromkeys(best), out)
    load(out)


def test_a_network_is_published_from_where_it_was_staged(
    folder: Path, tmp_path: Path, lowered: LoweredNetwork, best: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with staging(out) as stage:
        compile_network(lowered, best, stage)
        with pytest.raises(OutputFolderError):
            load(out)
        publish(stage, out)
    load(out)
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "network.so", "params.safetensors"]
    # The same network again is staged as it is, and another one leaves the published one alone.
    with staging(out) as stage, monkeypatch.context() as patched:
        patched.setattr(network_folder, "build", lambda *_: pytest.fail("built again"))
        compile_network(lowered, best, stage)
    with staging(out) as stage:
        compile_network(lowered, dict.fromkeys(best), stage)
    assert (out / "network.so").read_bytes() == (folder / "network.so").read_bytes()
    load(out)


def test_measured_figures_are_added(folder: Path, tmp_path: Path) -> None:
    copied = copy(folder, tmp_path)
    update_manifest(copied, {"tuned_secs": 0.5})
    assert load(copied).manifest["tuned_secs"] == 0.5


def test_latency_is_measured(folder: Path, network: Network) -> None:
    assert 0 < load(folder).measure_secs(network.example_inputs, repeats=3) < 1


def test_several_outputs_and_external_kernels(tmp_path: Path) -> None:
    class TopK(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, indices = torch.topk(torch.tanh(self.dense(x)).reshape(4, 4) + shift, 2)
            return values, indices

    torch.manual_seed(1)
    inputs = (torch.randn(2, 8), torch.tensor(0.5))
    network = load_network((TopK(), inputs))
    lowered = import_network(network, CPU)
    best = {task.id: random_trace(task, 1) for task in lowered.tasks if "matmul" in task.workload.name}
    outputs = load(compile_network(lowered, best, tmp_path / "out"))(*inputs)
    assert [output.dtype for output in outputs] == [torch.float32, torch.int64]
    np.testing.assert_allclose(outputs[0].numpy(), network.framework_outputs()[0], atol=1e-6)
    np.testing.assert_array_equal(outputs[1].numpy(), network.framework_outputs()[1])


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(256, 256))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ self.weight) @ self.weight

    lowered = import_network(load_network((Tied(), (torch.randn(1, 256),))), CPU)
    folder = compile_network(lowered, {}, tmp_path / "out")
    assert (folder / "params.safetensors").stat().st_size < 1.5 * 256 * 256 * 4


@two_cpus
@pytest.mark.parametrize("wanted", [1, 2])
def test_the_threads_of_the_manifest_are_used_in_every_thread(folder: Path, tmp_path: Path, wanted: int) -> None:
    copied = copy(folder, tmp_path)
    update_manifest(copied, {"threads": wanted})
    code = f"""
import threading, tvm_ffi, numpy as np
from devices.networks.compiled.network_folder import load
network, threads = load({str(copied)!r}), tvm_ffi.get_global_func("runtime.NumThreads")
def run():
    network(np.zeros((1, 3, 32, 32), "float32"))
    print(threads())
run()
other = threading.Thread(target=run)
other.start()
other.join()
"""
    done = run_without_torch(code)
    assert done.stdout.split() == [str(wanted)] * 2


@two_cpus
def test_networks_of_several_numbers_of_threads_in_one_thread(folder: Path, tmp_path: Path) -> None:
    """Each is called with its own number, and the caller may run afterwards where it could before."""
    one, two = (copy(folder, tmp_path / name) for name in ("one", "two"))
    for threads, copied in enumerate((one, two), start=1):
        update_manifest(copied, {"threads": threads})
    code = f"""
import os, tvm_ffi, numpy as np
from devices.networks.compiled.network_folder import load
one, two, threads = load({str(one)!r}), load({str(two)!r}), tvm_ffi.get_global_func("runtime.NumThreads")
allowed = os.sched_getaffinity(0)
for network in (one, two, one, two):
    network(np.zeros((1, 3, 32, 32), "float32"))
    print(threads(), os.sched_getaffinity(0) == allowed)
"""
    done = run_without_torch(code)
    assert done.stdout.split() == ["1", "True", "2", "True"] * 2
    assert "UserWarning" not in done.stderr


@two_cpus
def test_a_network_that_comes_too_late_for_its_threads_says_so(folder: Path, tmp_path: Path) -> None:
    copied = copy(folder, tmp_path)
    update_manifest(copied, {"threads": 1})
    code = f"""
import numpy as np
from devices.networks.compiled.network_folder import load
for folder in ({str(copied)!r}, {str(folder)!r}):
    load(folder)(np.zeros((1, 3, 32, 32), "float32"))
"""
    done = run_without_torch(code)
    assert re.search("runs with 1 threads.*run it in a thread of its own", done.stderr)


def test_a_network_runs_on_the_cpus_that_its_process_may_use(folder: Path) -> None:
    code = f"""
import os
os.sched_setaffinity(0, {{max(os.sched_getaffinity(0))}})
allowed = os.sched_getaffinity(0)
import numpy as np
from devices.networks.compiled.network_folder import load
load({str(folder)!r})(np.zeros((1, 3, 32, 32), "float32"))
print(allowed == set.union(*(os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task"))))
"""
    done = run_without_torch(code)
    assert done.stdout.strip() == "True", done.stdout


def test_calls_from_several_threads(folder: Path, network: Network) -> None:
    loaded = load(folder)
    images = [np.full_like(network.example_inputs[0], at) for at in range(4)]
    expected = [loaded(image) for image in images]
    found: dict[int, Any] = {}

    def run(at: int) -> None:
        for _ in range(10):
            found[at] = loaded(images[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, want in enumerate(expected):
        np.testing.assert_array_equal(found[at], want)


def test_loading_needs_no_torch(folder: Path) -> None:
    code = (
        "import numpy as np\nfrom devices.networks.compiled.network_folder import load\n"
        f"print(load({str(folder)!r})(np.zeros((1, 3, 32, 32), 'float32')).shape)"
    )
    done = run_without_torch(code)
    assert done.stdout.strip() == "(1, 10)"


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ((), "0 inputs given"),
        ((np.zeros((1, 3, 32, 32), "float32"),) * 2, "2 inputs given"),
        ((np.zeros((2, 3, 32, 32), "float32"),), r"'x' is float32\[2, 3, 32, 32\]"),
        ((np.zeros((1, 3, 32, 32)),), "'x' is float64"),
        (([[1.0]],), "'x' is a list"),
    ],
)
def test_wrong_inputs_are_named(folder: Path, inputs: tuple[Any, ...], named: str) -> None:
    with pytest.raises(NetworkInputError, match=named):
        load(folder)(*inputs)


def _remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _overwrite(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (shutil.rmtree, "no such folder"),
        (_remove("manifest.json"), "no compiled network"),
        (_remove("network.so"), "network.so"),
        (_remove("params.safetensors"), "params.safetensors"),
        (_overwrite("manifest.json", "{"), "manifest.json is damaged"),
        (_overwrite("manifest.json", "[]"), "manifest.json is damaged"),
        (_overwrite("manifest.json", '{"schema": 1}'), "manifest.json is damaged"),
        (_overwrite("manifest.json", '{"schema": 99}'), "schema 99"),
        (_overwrite("network.so", "no library"), "network.so is damaged"),
        (_overwrite("params.safetensors", "no tensors"), "params.safetensors is damaged"),
    ],
)
def test_damaged_folders(folder: Path, tmp_path: Path, damage: Callable[[Path], object], named: str) -> None:
    copied = copy(folder, tmp_path)
    damage(copied)
    with pytest.raises(OutputFolderError, match=named) as caught:
        load(copied)
    assert caught.value.next_step


def test_a_network_for_another_processor_is_refused(folder: Path, tmp_path: Path) -> None:
    copied = copy(folder, tmp_path)
    update_manifest(copied, {"target": {"kind": "llvm", "mtriple": "riscv64-linux-gnu", "num-cores": 2}})
    with pytest.raises(OutputFolderError, match="another kind of processor"):
        load(copied)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the CPU of this test is an x86")
def test_a_network_whose_code_this_processor_cannot_run_is_refused(folder: Path, tmp_path: Path) -> None:
    copied = copy(folder, tmp_path)
    update_manifest(copied, {"target": {"kind": "llvm", "mcpu": "bdver4", "num-cores": 2}})
    with pytest.raises(OutputFolderError, match=r"this processor lacks: fma4,( sse4a,)? tbm, xop"):
        load(copied)


def test_a_network_for_cuda_is_built_without_a_gpu(network: Network) -> None:
    target = resolve_target({"kind": "cuda", "arch": "sm_87"})
    executable = build(import_network(network, DeviceClass("gpu", target)).module, target)
    # Library, executable, device code.
    assert executable.module.imports[0].imports
    assert packing_calls(executable) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reductions_over_threads_are_built_for_cuda(dtype: torch.dtype) -> None:
    """TVM has no place for what their threads share where all that is shared is put together; and of bfloat16 it builds
    what threads do alone. So a network is built in another way, and the oracle by a default schedule."""
    device_class = DeviceClass("gpu", resolve_target("nvidia/jetson-agx-orin-64gb"))
    module = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Softmax(-1)).to(dtype)
    lowered = import_network(load_network((module, (torch.ones(4, 32, dtype=dtype),))), device_class)
    assert build(lowered.module, device_class.target).module.imports[0].imports
    compiler = KernelCompiler()
    for task in lowered.tasks:
        request = {"task_id": task.id, "task": encode_task(task), "candidate": None}
        assert b'extern "C" __global__' in compiler.build(request)["library"]


def test_a_trace_that_does_not_fit_its_task_is_named(lowered: LoweredNetwork, best: dict[str, str | None]) -> None:
    first, second = lowered.tasks[-2], lowered.tasks[0]  # a mean and a convolution
    with pytest.raises(RecordStoreError, match=first.workload.name):
        schedule_kernels(lowered, {first.id: best[second.id]})


def test_a_full_disk(lowered: LoweredNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="no space left"):
        compile_network(lowered, {}, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_made(lowered: LoweredNetwork, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFolderError, match="cannot be written"):
        compile_network(lowered, {}, tmp_path / "file")
