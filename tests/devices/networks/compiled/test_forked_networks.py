"""A published network in processes that are forked. All scenarios run in one real process, which has a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from devices.host.limits.forks import ForkError
from devices.networks.compiled.network_folder import compile_network, load
from tests.helpers.compiling import trace
from tests.helpers.lowered_networks import imported

ROOT = Path(__file__).resolve().parents[4]
_PROGRAM = """
import concurrent.futures, multiprocessing, os, sys, threading, traceback
import numpy as np
from devices.networks.compiled.network_folder import load

folder = sys.argv[1]
network, other = load(folder), load(folder)
image = np.arange(64 * 64, dtype="float32").reshape(64, 64)
fork = multiprocessing.get_context("fork")

def total(_=0):
    return float(network(image).sum() + other(image).sum())

def exit_code(do):
    pid = os.fork()
    if pid == 0:
        try:
            do()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def right():
    assert total() == want, total()
    os._exit(5)

def is_running(thread):
    try:
        return open(f"/proc/self/task/{thread}/stat").read().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it has ended
        return False

def before_the_first_call():
    with fork.Pool(2) as pool:
        assert pool.map(total, range(4)) == [total()] * 4

def multiprocessing_pool():
    with fork.Pool(2) as pool:
        assert pool.map(total, range(4)) == [want] * 4
    assert total() == want

def executor():
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool:
        assert list(pool.map(total, range(4))) == [want] * 4

def threads_in_the_child():
    def run():
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert list(pool.map(total, range(4))) == [want] * 4
        assert network.measure_secs(image, 2) > 0
        right()
    assert exit_code(run) == 5

def a_fork_of_a_fork():
    def run():
        assert exit_code(right) == 5
        assert total() == want
        assert exit_code(right) == 5
        right()
    assert exit_code(run) == 5

def a_fork_in_a_thread():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(exit_code, right).result() == 5
        assert pool.submit(total).result() == want
        assert pool.submit(exit_code, right).result() == 5

def during_calls_of_other_threads():
    stop, wrong = threading.Event(), []
    def run():
        while not stop.is_set():
            if total() != want:
                wrong.append(1)
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    codes = [exit_code(right) for _ in range(5)]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [5] * 5 and not wrong, codes

def during_a_load_in_another_thread():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, folder)
        assert exit_code(right) == 5
        loading.result()

def an_error_in_the_child():
    def run():
        try:
            network(image[1:])
        except ValueError as error:
            assert "pass float32[64, 64]" in str(error)
            right()
    assert exit_code(run) == 5

def a_child_that_ends_as_programs_do():
    # After a while the threads of the pool sleep. That is another state to be forked in.
    own = str(threading.get_native_id())
    while any(is_running(thread) for thread in os.listdir("/proc/self/task") if thread != own):
        pass
    assert exit_code(lambda: None) == 7
    assert exit_code(total) == 7

for scenario in sys.argv[2:]:
    globals()[scenario]()
    want = total()
    print(scenario, flush=True)
os._exit(0)
"""
_SCENARIOS = (
    "before_the_first_call",
    "multiprocessing_pool",
    "executor",
    "threads_in_the_child",
    "a_fork_of_a_fork",
    "a_fork_in_a_thread",
    "during_calls_of_other_threads",
    "during_a_load_in_another_thread",
    "an_error_in_the_child",
    "a_child_that_ends_as_programs_do",
)


def test_a_network_on_a_gpu_in_a_forked_process_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered, network = imported(nn.Linear(8, 8), torch.zeros(8, 8))
    loaded = load(compile_network(lowered, {}, tmp_path / "cpu"))
    loaded(*network.example_inputs)
    monkeypatch.setattr(loaded, "_device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(
        ForkError, match=r'a GPU does not serve it; start it with multiprocessing.get_context\("spawn"\)'
    ):
        loaded(*network.example_inputs)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process may use one CPU: TVM's pool has no threads")
def test_forked_processes_run_the_network(tmp_path: Path) -> None:
    lowered, _ = imported(nn.Linear(64, 64), torch.zeros(64, 64))
    (task,) = lowered.tasks
    # A kernel of several threads: others need no pool.
    folder = compile_network(lowered, {task.id: trace(task)}, tmp_path / "cpu", {"threads": 2})
    command = [sys.executable, "-c", _PROGRAM, str(folder), *_SCENARIOS]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, output.split()) == (0, list(_SCENARIOS))
