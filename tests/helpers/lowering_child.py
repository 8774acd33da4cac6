"""A child process that lowers networks and in which passes of TVM misbehave: the real one otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

STAND_IN = """
import os, signal, threading
from devices.host.children.child import load_tvm
from devices.networks.processes import lowering_worker

MISBEHAVE = {misbehave!r}

def act(how):
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        threading.Event().wait()
    if how == "bad_alloc":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'")
        os.abort()
    raise RuntimeError(how)

def main():
    load_tvm()
    import devices.networks.tasks.lowering as lowering
    from tvm.relax import transform

    for name, how in MISBEHAVE.items():
        if name == "run":
            lowering.compile_host = lambda _, how=how: act(how)
        else:
            setattr(transform, name, lambda *_, how=how: lambda _: act(how))
    lowering_worker.main()

if __name__ == "__main__":
    main()
"""


def write_stand_in(folder: Path, misbehave: Mapping[str, str]) -> str:
    """The name of the module, written to this folder. ``misbehave``: what passes of TVM do (``crash``, ``kill``,
    ``hang``, ``bad_alloc``, or raise an error of this text), by their names; ``run`` is the run of the network."""
    (folder / "stand_in_lowering.py").write_text(STAND_IN.format(misbehave=dict(misbehave)))
    return "stand_in_lowering"
