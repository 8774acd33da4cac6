"""The build worker with real child processes: crashes, timeouts, recycling, and real builds of a real task."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from devices.builds.builder import BuilderStartError, BuildWorker, memory_limit
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.protocol import Artifact, BuildRequest
from fleet_tune.base.domain import Candidate, Measurement, Outcome, Task
from fleet_tune.base.errors import UserError
from tests.helpers.build_child import (
    ABORT,
    CRASH,
    ERROR,
    GROW,
    HANG,
    HOARD,
    KILLED,
    OK,
    SLOW,
    USER_ERROR,
    stand_in_request,
)
from tests.helpers.kernels import native_target
from tests.helpers.tasks import make_task
from tests.helpers.waiting import wait_until


@pytest.fixture
def worker(stand_in: str) -> Iterator[BuildWorker]:
    with BuildWorker(module=stand_in) as worker:
        yield worker


def request(what: int, name: str = "matmul", timeout_secs: float = 30.0) -> BuildRequest:
    return stand_in_request(make_task(name, "cpu"), what, timeout_secs)


def running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_builds_in_one_warm_process(worker: BuildWorker) -> None:
    first, second, other = worker.build(request(OK)), worker.build(request(OK)), worker.build(request(OK, "conv"))
    assert isinstance(first, Artifact)
    assert isinstance(second, Artifact)
    assert isinstance(other, Artifact)
    assert first.trace == second.trace == other.trace == str(worker.pid)
    assert (first.library, other.library) == (b"matmul", b"conv")
    assert (first.args[0].shape, first.original_args[0].shape, first.outputs, first.packed) == (
        (2, 3),
        (6,),
        (0,),
        (0,),
    )
    assert first.candidate == request(OK).candidate
    assert first.build_secs > 0
    assert worker.last_timings is not None
    assert worker.last_timings.link_secs == 0.3


def test_a_crash_costs_one_candidate(worker: BuildWorker) -> None:
    worker.build(request(OK))
    crashed = worker.build(request(CRASH))
    assert isinstance(crashed, Measurement)
    assert crashed.outcome is Outcome.BUILD_ERROR
    assert "SIGSEGV" in crashed.detail
    assert isinstance(worker.build(request(OK)), Artifact)  # the new child is given the task again


def test_a_child_that_another_process_kills_is_no_fault_of_the_candidate(worker: BuildWorker) -> None:
    worker.build(request(OK))
    killed = worker.build(request(KILLED))
    assert isinstance(killed, Measurement)
    assert killed.outcome is Outcome.KILLED
    assert killed.detail == "the build process ended: killed by SIGKILL"
    assert isinstance(worker.build(request(OK)), Artifact)


def test_a_hanging_build_is_killed_at_its_deadline(worker: BuildWorker) -> None:
    worker.build(request(OK))
    pid = worker.pid
    assert pid is not None
    hung = worker.build(request(HANG, timeout_secs=0.2))
    assert isinstance(hung, Measurement)
    assert hung.outcome is Outcome.BUILD_TIMEOUT
    assert not running(pid)
    assert isinstance(worker.build(request(OK)), Artifact)


def test_an_exception_is_a_failure_with_its_last_line(worker: BuildWorker) -> None:
    failed = worker.build(request(ERROR))
    assert isinstance(failed, Measurement)
    assert failed.outcome is Outcome.BUILD_ERROR
    assert failed.detail == "ValueError: the reason"


def test_what_the_user_can_mend_is_raised(worker: BuildWorker) -> None:
    with pytest.raises(UserError) as caught:
        worker.build(request(USER_ERROR))
    assert (caught.value.problem, caught.value.next_step) == ("no linker", "install one")


def test_a_child_that_grows_is_replaced(stand_in: str) -> None:
    with BuildWorker(module=stand_in, recycle_bytes=80 << 20) as worker:
        small = worker.build(request(OK))
        grown = worker.build(request(GROW))
        after = worker.build(request(OK))
    assert isinstance(small, Artifact)
    assert isinstance(grown, Artifact)
    assert isinstance(after, Artifact)
    assert small.trace == grown.trace != after.trace


def test_a_child_is_replaced_after_so_many_builds(stand_in: str) -> None:
    with BuildWorker(module=stand_in, recycle_builds=2) as worker:
        built = [worker.build(request(OK)) for _ in range(5)]
    pids = [one.trace for one in built if isinstance(one, Artifact)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]


@pytest.mark.parametrize("how", [HOARD, ABORT])
def test_a_build_beyond_the_memory_limit_fails_alone(stand_in: str, how: int) -> None:
    with BuildWorker(module=stand_in, memory_limit_bytes=400 << 20) as worker:
        before = worker.build(request(OK))
        failed = worker.build(request(how))
        after = worker.build(request(OK))
    assert isinstance(failed, Measurement)
    assert failed.outcome is Outcome.BUILD_ERROR
    assert "needed more than 400 MiB of memory" in failed.detail
    assert isinstance(before, Artifact)
    assert isinstance(after, Artifact)
    assert before.trace != after.trace  # what is left of a process without memory is not trusted


@pytest.mark.parametrize(
    ("total_gib", "workers", "limit_gib"), [(24, 2, 6), (24, 1, 8), (64, 2, 8), (16, 8, 1), (8, 16, 1)]
)
def test_workers_share_half_of_the_memory(total_gib: int, workers: int, limit_gib: int) -> None:
    assert memory_limit(total_gib << 30, workers) == limit_gib << 30


def test_what_was_built_before_is_not_built_again(stand_in: str, tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with BuildWorker(module=stand_in, artifacts=folder) as worker:
        first = worker.build(request(OK))
        failed = worker.build(request(ERROR))
    with BuildWorker(module=stand_in, artifacts=folder) as worker:
        again = worker.build(request(OK))
        assert worker.pid is None  # nothing had to be started
        other = worker.build(request(OK, "conv"))
        assert isinstance(worker.build(request(ERROR)), Measurement)
    assert isinstance(first, Artifact)
    assert isinstance(failed, Measurement)
    assert again == first
    assert isinstance(other, Artifact)
    assert other.library == b"conv"


def test_a_child_killed_between_builds_is_replaced(worker: BuildWorker) -> None:
    worker.build(request(OK))
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not running(pid), "the child is dead")
    assert isinstance(worker.build(request(OK)), Artifact)


def test_calls_from_threads_queue(worker: BuildWorker) -> None:
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(worker.build(request(OK)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 8
    assert all(isinstance(result, Artifact) for result in results)


def test_close_in_the_middle_of_a_build(worker: BuildWorker) -> None:
    worker.build(request(OK))
    errors: list[BaseException] = []
    building = threading.Event()

    def build() -> None:
        building.set()
        try:
            worker.build(request(HANG, timeout_secs=60))
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    building.wait(10)
    worker.close()
    thread.join(20)
    assert "closed" in str(errors[0])
    with pytest.raises(RuntimeError, match="closed"):
        worker.build(request(OK))


def test_a_child_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_worker.py").write_text("raise ImportError('no such library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        BuildWorker(module="broken_worker") as worker,
        pytest.raises(BuilderStartError, match="exited with code 1; ImportError: no such library"),
    ):
        worker.build(request(OK))


SLOW_START = """
import os, pathlib
if not pathlib.Path(os.environ["STARTS_FROM"]).exists():
    import threading
    threading.Event().wait()
"""


def test_a_child_that_starts_too_slowly_costs_itself_and_the_next_has_longer(
    stand_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_worker.py").write_text(f"{SLOW_START}import runpy\nrunpy.run_module({stand_in!r})\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("STARTS_FROM", str(tmp_path / "now"))
    with BuildWorker(module="slow_worker", start_timeout_secs=0.05) as worker:
        with pytest.raises(BuilderStartError, match=r"did not start: not within 0\.05 s"):
            worker.build(request(OK))
        (tmp_path / "now").touch()
        limits = []
        built = None
        while built is None:  # to load what it needs takes longer than the first limits allow
            try:
                built = worker.build(request(OK))
            except BuilderStartError as error:
                limits.append(float(str(error).removesuffix(" s").rpartition(" ")[2]))
    assert isinstance(built, Artifact)
    assert limits == [0.05 * 2**at for at in range(1, len(limits) + 1)]


def test_a_child_that_cannot_even_be_forked_says_why(worker: BuildWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_arguments: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    worker.build(request(OK))
    with monkeypatch.context() as patched:
        patched.setattr("devices.builds.builder.ChildProcess", no_more)
        crashed = worker.build(request(CRASH))  # its own failure is told, not that of the next child
        assert isinstance(crashed, Measurement)
        with pytest.raises(BuilderStartError, match="cannot be started: Resource temporarily unavailable"):
            worker.build(request(OK))
    assert isinstance(worker.build(request(OK)), Artifact)


def test_the_child_dies_with_a_killed_parent(stand_in: str) -> None:
    code = f"""
import sys
from devices.builds.builder import BuildWorker
worker = BuildWorker(module={stand_in!r})
worker.start()
print(worker.pid, flush=True)
sys.stdin.readline()
"""
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ["PYTHONPATH"]])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.kill()
        wait_until(lambda: not running(pid), "the build process ended with its parent")


@pytest.fixture(scope="module")
def real_worker() -> Iterator[BuildWorker]:
    with BuildWorker() as worker:
        yield worker


@pytest.fixture(scope="module")
def matmul_task() -> Task:
    from tests.helpers.programs import matmul, program_task

    return program_task(matmul(64, 48, 32), native_target(), name="matmul", flop=2.0 * 64 * 48 * 32)


def test_builds_the_unscheduled_program_for_real(real_worker: BuildWorker, matmul_task: Task, tmp_path: Path) -> None:
    import numpy as np
    import tvm

    built = real_worker.build(BuildRequest(matmul_task, None, 120))
    assert isinstance(built, Artifact), built
    assert [spec.shape for spec in built.args] == [(64, 48), (48, 32), (64, 32)]
    assert (built.outputs, built.packed, built.trace) == ((2,), (), "")
    path = tmp_path / "kernel.so"
    path.write_bytes(built.library)
    a, b = np.random.default_rng(0).random((64, 48), np.float32), np.ones((48, 32), np.float32)
    tensors = [tvm.runtime.tensor(x) for x in (a, b, np.zeros((64, 32), np.float32))]
    tvm.runtime.load_module(str(path))["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), a @ b, rtol=1e-4)


def test_an_unknown_sketch_is_a_failure_of_the_candidate(real_worker: BuildWorker, matmul_task: Task) -> None:
    failed = real_worker.build(BuildRequest(matmul_task, Candidate(matmul_task.id, 0, "none", (1,)), 120))
    assert isinstance(failed, Measurement)
    assert failed.outcome is Outcome.BUILD_ERROR
    assert "no sketch" in failed.detail


class LookedAt(QuietWindow):
    """Counts how often somebody has asked for the seconds."""

    looks = 0

    def clock(self) -> float:
        self.looks += 1
        return super().clock()


def test_a_window_waits_for_no_build_and_a_builds_limit_counts_what_it_ran(stand_in: str, tmp_path: Path) -> None:
    window = LookedAt(tmp_path / "window", timeout_secs=20)
    results: list[object] = []
    with BuildWorker(module=stand_in, window=window) as worker:
        worker.build(request(OK))
        pid = worker.pid
        assert pid is not None
        thread = threading.Thread(target=lambda: results.append(worker.build(request(HANG, timeout_secs=0.1))))
        with window.quiet():
            before = window.looks
            thread.start()
            # Twice when it begins, then each time that its limit has passed by a clock that does not stand still.
            wait_until(lambda: window.looks > before + 2 + 3, "three times its limit has passed")
            assert not results
            assert running(pid)
        thread.join(20)
        (hung,) = results
        assert isinstance(hung, Measurement)
        assert hung.outcome is Outcome.BUILD_TIMEOUT
        assert isinstance(worker.build(request(OK)), Artifact)
        with window.quiet():  # the child that took its place is stopped too
            assert worker.pid is not None
            assert worker.pid != pid
            assert psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
    window.close()


def test_seconds_in_which_a_build_stood_still_are_none_of_its(stand_in: str, tmp_path: Path) -> None:
    window = QuietWindow(tmp_path / "window", timeout_secs=20)
    results: list[object] = []
    with BuildWorker(module=stand_in, window=window) as worker:
        worker.build(request(OK))
        thread = threading.Thread(target=lambda: results.append(worker.build(request(SLOW))))
        building = psutil.Process(worker.pid)
        began = time.monotonic()
        thread.start()
        wait_until(lambda: "slow" in building.name(), "the build is under way")
        with window.quiet():
            paused = time.monotonic()
            wait_until(lambda: time.monotonic() > paused + 2.0, "it stands still for longer than it runs")
            paused_secs = time.monotonic() - paused
        thread.join(20)
        whole_secs = time.monotonic() - began
    (built,) = results
    assert isinstance(built, Artifact)
    assert 0 < built.build_secs <= whole_secs - paused_secs
    window.close()
