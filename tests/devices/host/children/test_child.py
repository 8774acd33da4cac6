"""Child processes end with all that they have started."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil

from devices.host.children.child import ChildProcess
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[4]
# A compiler that ends before its linker does.
STARTS_ANOTHER = """
import os, time
other = os.fork()
if other == 0:
    time.sleep(600)
print(other, flush=True)
os._exit(1)
"""


LOADS_TVM = """
import gc, sys
from devices.host.children.child import load_tvm
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
load_tvm()
gc.callbacks.clear()
import tvm
loaded = [name for name in sys.modules if name.split(".")[0] == "torch" and sys.modules[name] is not None]
print(gc.isenabled(), len(collections) <= 2, loaded, hasattr(tvm, "relax"))
"""


def test_tvm_is_loaded_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADS_TVM], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    # One collection at most, when it begins again.
    assert done.stdout.split() == ["True", "True", "[]", "True"]


def ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_what_it_started_ends_with_it_also_when_it_is_gone_already(tmp_path: Path) -> None:
    (tmp_path / "starts_another.py").write_text(STARTS_ANOTHER)
    child = ChildProcess("starts_another", env={"PYTHONPATH": str(tmp_path)})
    assert child.obituary(60.0).startswith("exited with code 1; ")  # and it is reaped
    other = psutil.Process(int(child.last_words()))
    try:
        assert not ended(other)
        child.kill()
        wait_until(lambda: ended(other), "the other ends")
        child.kill()
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            other.kill()
