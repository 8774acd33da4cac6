from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, threading, time
from actors.clusters.waiting_signals import Start, signals_wait

def heard(number, _frame):
    print("heard", signal.Signals(number).name, flush=True)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, heard)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
start, deadline = Start(), time.monotonic() + 60

def wait():
    while time.monotonic() < deadline:
        time.sleep(0.01)

def seen():
    while not signal.sigpending():
        time.sleep(0.01)

try:
    with signals_wait(), start.ends_with_signals():
        {block}
        print("done", flush=True)
except BaseException as error:
    print(type(error).__name__, flush=True)
print("asked" if start.asked else "not asked")
"""


def outcome(block: str) -> list[str]:
    script = SCRIPT.replace("{block}", block.strip().replace("\n", "\n        "))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_signal_ends_a_start_before_its_handler_is_called() -> None:
    """It is called once the block has ended; a second signal of another kind is not lost."""
    *heard, error, asked = outcome("for number in (15, 2):\n    os.kill(os.getpid(), number)\nwait()")
    assert (sorted(heard), error, asked) == (["heard SIGINT", "heard SIGTERM"], "StartInterruptedError", "asked")


def test_a_signal_after_the_commitment_waits() -> None:
    block = "start.commit()\nos.kill(os.getpid(), 15)\nseen()\nstart._over.wait(0.5)"
    assert outcome(block) == ["done", "heard SIGTERM", "not asked"]


def test_an_ignored_signal_ends_nothing() -> None:
    assert outcome("os.kill(os.getpid(), 1)\nstart._over.wait(0.5)") == ["done", "not asked"]


def test_the_start_of_a_server_is_not_divided() -> None:
    block = "with start.undivided():\n    os.kill(os.getpid(), 15)\n    time.sleep(0.5)\n    print('started')\nwait()"
    assert outcome(block) == ["started", "heard SIGTERM", "StartInterruptedError", "asked"]
