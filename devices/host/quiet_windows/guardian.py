"""Continues stopped processes when the process that stopped them is gone
(:mod:`devices.host.quiet_windows.process_pauser`).

Run as ``python -m devices.host.quiet_windows.guardian FOLDER PID``, with the reading end of a pipe as its standard
input, whose other end only PID has. It detaches from its parent, and ends when the pipe is closed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from devices.host.quiet_windows.process_pauser import resume_processes_of


def main() -> None:
    folder, pid = Path(sys.argv[1]), int(sys.argv[2])
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    while os.read(0, 4096):
        pass
    resume_processes_of(folder, pid)


if __name__ == "__main__":
    main()
