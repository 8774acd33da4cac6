"""A child process of the describer in which the name of a task says what becomes of its sketches, without TVM."""

from __future__ import annotations

from pathlib import Path

STAND_IN = """
import os, signal, sys, time
import devices.sketches
from types import SimpleNamespace
from dataclasses import replace
from fleet_tune.base.sketch import Axis, Choice, Sketch, Statement

def misbehave(how):
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "kill" or how == "kill once" and not os.path.exists(__file__ + ".killed"):
        open(__file__ + ".killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)
    if how == "error":
        raise RuntimeError("many lines")

def first_line(error):
    return f"{type(error).__name__}: in one line"

class DesignSpace:
    left_out = (("rule", "refused"),)

    def __init__(self, task):
        self._name = task.workload.name
        misbehave(self._name)
        decisions = (Choice("unroll", (0, 16)),)
        self.undescribed = tuple(Sketch(at, "loops", f"{self._name} {at}", decisions, ()) for at in range(3))
        if self._name == "late":
            worker.TASK_SECS = -1.0
            self.undescribed = tuple(self.described(at) for at in range(3))

    def described(self, at):
        name, _, number = self._name.partition(" at ")
        if number == str(at):
            misbehave(name)
        statement = Statement(str(os.getpid()), (Axis("i", 8, False),), (), (), 1.0)
        return replace(self.undescribed[at], statements=(statement,))

sys.modules["devices.sketches.spaces"] = SimpleNamespace(DesignSpace=DesignSpace)
sys.modules["devices.sketches.generation"] = SimpleNamespace(first_line=first_line)
from devices.describing import worker

if __name__ == "__main__":
    worker.main()
"""


def write_stand_in(folder: Path) -> str:
    """The name of the module, written to this folder."""
    (folder / "stand_in_describer.py").write_text(STAND_IN)
    return "stand_in_describer"
