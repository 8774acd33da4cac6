"""The process that watches another one while that loads libraries (:mod:`devices.networks.libraries`).

Run by its path, with a pipe as its standard input. Each line of it names what is loaded from then on; an empty line
says that all is loaded. Where the pipe ends without one, its writer has ended: people are told so. It imports nothing
of ours, so that it starts at once.
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
