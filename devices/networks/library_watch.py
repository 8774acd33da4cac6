"""The process that watches another process while that process loads libraries (:mod:`devices.networks.libraries`).

It is run by its path, with a pipe as its standard input. Each line names the library that is loaded from then on; an
empty line says that loading is over. If the pipe closes before an empty line, its writer has ended, and the user is
told. The watch imports nothing of this project, so that it starts at once.
"""

from __future__ import annotations

import signal
import sys

_NEXT = (
    "a line above may say why. 'Illegal instruction' (SIGILL): this CPU lacks what the installed build needs; "
    "'Killed': free some memory (dmesg tells); else install the versions of requirements.lock again. "
    "Then run the same command again"
)


def main() -> None:
    # Ctrl-C in a terminal is for the process that is watched.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    loading = ""
    for line in sys.stdin:
        loading = line.strip()
        if not loading:
            return
    print(f"error: the process ended while it loaded {loading or 'its libraries'}\nnext: {_NEXT}", file=sys.stderr)


if __name__ == "__main__":
    main()
