"""Run as ``python with_parent.py SCRIPT ARGUMENTS``: runs one of Ray's scripts in a process that ends with its parent,
in whatever way the parent ends. For :mod:`actors.clusters.embedded_ray`. It imports no module of ours, since Ray runs
it by path."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ.get("RAY_RAYLET_PID", os.getppid())):
        os._exit(0)  # the parent has already ended
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
